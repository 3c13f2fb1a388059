"""`keepthread chat` as a person uses it: each command, each key, in a real terminal."""

import json
import re
from pathlib import Path

from keepthread.testing.server import Gate, Received, Say, ScriptedServer
from keepthread.types import Usage
from tests.chatting import Chat, flat, home

CLAUDE = Path(__file__).parent / "chats" / "claude.json"
ANSWER = "# Weather\n\nIt **rains** in Jakarta:\n\n- 29 degrees\n- wind from `west`\n"


def heard(asked: Received) -> str:
    """Say again what was asked."""
    return f"Heard {asked.text}."


# ------------------------------------------------------------------- answers


async def test_an_answer_is_drawn_as_it_arrives_and_remembered(tmp_path: Path) -> None:
    gate = Gate()
    say = Say(ANSWER, hold=gate, hold_after=5)
    with ScriptedServer([say, "Sun in Tokyo."]) as server, home(tmp_path, server).chat() as chat:
        chat.send("How is the weather in Jakarta?")
        chat.sees("It rains in")
        assert "29 degrees" not in chat.seen
        gate.open()
        chat.asked()
        # Drawn as Markdown, once, with nothing of its marks left.
        drawn = [line.strip() for line in chat.seen.splitlines()]
        assert drawn.count("Weather") == 1
        assert drawn.count("It rains in Jakarta:") == 1
        assert "• wind from west" in drawn
        assert "**" not in chat.seen
        assert "Sun in Tokyo." in chat.say("How about Tokyo?")
        chat.sees(re.compile(r"weather in Jakarta\? · scripted · \d+ of 4,096 tokens"))
        chat.leave()
    assert ANSWER.strip() in server.requests[1].context
    assert await home(tmp_path, server).said() == [
        *("How is the weather in Jakarta?", ANSWER),
        *("How about Tokyo?", "Sun in Tokyo."),
    ]


def test_a_terminal_resized_in_the_middle_of_an_answer_shows_all_of_it(tmp_path: Path) -> None:
    gates = [Gate(), Gate()]
    words = [f"w{n}" for n in range(120)]
    script = [Say(" ".join(words), hold=gate, hold_after=60) for gate in gates]
    with (
        ScriptedServer(script) as server,
        home(tmp_path, server).chat(columns=80, rows=12) as chat,
    ):
        for (columns, rows), gate in zip([(33, 8), (120, 40)], gates, strict=True):
            chat.send("Count")
            chat.sees_line(r"w.* w59")
            chat.terminal.resize(columns, rows)
            gate.open()
            chat.asked()
            shown = re.findall(r"\bw\d+\b", chat.seen.rpartition("> Count")[2])
            assert list(dict.fromkeys(shown)) == words
            assert max(map(len, chat.terminal.screen)) <= columns
        chat.leave()


# ------------------------------------------------------------------ commands


async def test_commands_show_what_a_chat_is_made_of(tmp_path: Path) -> None:
    prices = {f"KEEPTHREAD_MODEL_PRICE_{kind}": "1000" for kind in ("INPUT", "OUTPUT")}
    usage = Usage(input=1200, output=34, cached=1000)
    script = [Say("A good name for a dog.", usage=usage), "He is **seven**."]
    with ScriptedServer(script) as server, home(tmp_path, server, **prices).chat() as chat:
        assert "ask something first" in chat.say("/context")
        chat.say("My dog is called Rex")
        chat.say("How old is he?")
        history = chat.say("/history")
        assert re.search(r"1  user .*\n   My dog is called Rex\n\n2  assistant ", history)
        assert "2 earlier: /history 4 shows more" in chat.say("/history 2")

        context = chat.say("/context")
        used, sections = re.search(r"(\d+) of 4,096 tokens", context), context.partition("share")[2]
        parts = re.findall(r"^[■░] (\w+) +([\d,]+) +([\d.]+)%", sections, re.MULTILINE)
        tokens = {name: int(count.replace(",", "")) for name, count, _ in parts}
        assert used is not None
        assert sum(tokens.values()) == 4096
        assert tokens["unused"] == 4096 - int(used[1])
        assert abs(sum(float(share) for *_, share in parts) - 100) < 0.5
        assert re.search(r"^█+░+$", context, re.MULTILINE)
        why = chat.say("/why")
        assert re.search(
            r"^window .* 1-2 +2  among the newest messages that fit$", why, re.MULTILINE
        )
        assert re.search(r"^newest .* 3 +1  the newest user message", why, re.MULTILINE)
        assert re.search(r"kept 2 · chat · turn 1", chat.say("/why 2"))

        cost = [line.split() for line in chat.say("/cost").splitlines()]
        assert cost[0] == ["in", "cached", "out", "price"]
        assert cost[2][:3] == ["since", "the", "start"]
        assert cost[3][-4:] == cost[2][-4:]
        total, cached, out = (int(cell.replace(",", "")) for cell in cost[3][2:5])
        assert (total > 1200, cached, out) == (True, 1000, 34 + len("He is **seven**.") // 4)

        assert "This session is now called “Dog talk”" in chat.say("/rename  Dog   talk ")
        chat.sees(re.compile(r"^Dog talk · scripted", re.MULTILINE))
        status = chat.say("memory:status")
        assert re.search(r"^messages +4$", status, re.MULTILINE)
        assert re.search(r"^title +Dog talk$", status, re.MULTILINE)
        assert re.search(r"→ 1 .* Dog talk +4 ", chat.say("/sessions"))
        assert "My dog is called Rex" in chat.say("/search the dog's name")
        assert re.match(r"Saved: 4 messages of session \S+ in ", flat(chat.say("/save")))
        assert "/sessions [N]" in chat.say("/help")
        assert "/why 2" in chat.say("/help why")
        chat.send("/quit")
        assert chat.ended() == 0


async def test_the_budget_is_one_number_and_the_question_comes_on_top(tmp_path: Path) -> None:
    used = re.compile(r"(\d+) of 4,096 tokens \(\d+%\), and \d+ of the question")
    with ScriptedServer(otherwise=heard) as server:
        here = home(tmp_path, server)
        with here.chat("--session", "s") as chat:
            chat.say("My dog is called Rex")
            chat.say("And how old may he be by now, would you say?")
            latest = used.search(chat.say("/why"))
            assert latest is not None
            chat.sees(re.compile(rf"scripted · {latest[1]} of 4,096 tokens"))
            assert used.search(chat.say("/why 2"))
            assert re.search(r"\d+ of 4,096 tokens \(\d+%\)$", chat.say("/context"), re.MULTILINE)
            chat.leave()
        shown = here.run("why", "s", "2").stdout.decode()  # 1 is that of /context
        assert used.search(shown), shown


async def test_commands_change_what_the_model_is_shown(tmp_path: Path) -> None:
    with ScriptedServer(otherwise=heard) as server:
        here = home(tmp_path, server)
        await here.fill("long", 14)
        with here.chat("-c") as chat:
            compacted = chat.say("/compact")
            assert re.search(r"up to position \d+: [\d,]+ tokens in \d+", compacted)
            assert "Pinned 1, “Question 0: " in chat.say("/pin 1")
            chat.say("first of all")
            context = server.requests[-1].context
            assert "Question 0: " in context
            assert "Unpinned 1, " in chat.say("/pin -1")
            assert "Pinned 30, “Heard first of all.”" in chat.say("/pin")

            shown = chat.say("/rewind", offer="first of all")
            assert "Hidden from the model: 1 turn, 2 messages" in shown
            chat.key("ctrl-u")
            chat.asked()
            chat.say("second try")
            assert "first of all" not in server.requests[-1].context

            assert "a copy; /resume long goes back" in chat.say("/fork branch")
            assert "Starting over" in chat.say("/clear")
            chat.say("a new beginning")
            assert "second try" not in server.requests[-1].context
            chat.say("memory:clear")
            chat.say("once more")
            assert "a new beginning" not in server.requests[-1].context
            assert "second try" in chat.say("/history")

            assert "second try" in chat.say("/resume long")
            chat.say("and here?")
            assert "second try" in server.requests[-1].context
            assert "once more" not in server.requests[-1].context
            chat.leave()
        assert (await here.said("branch"))[-2:] == ["once more", "Heard once more."]


async def test_forgetting_asks_first_and_then_nothing_is_left(tmp_path: Path) -> None:
    with ScriptedServer(otherwise=heard) as server:
        here = home(tmp_path, server)
        with here.chat("--session", "secrets") as chat:
            chat.say("I like apples")
            chat.say("My code is zebra17")
            chat.send("/forget last")
            chat.sees("Forget “My code is zebra17” and its answer permanently (2 messages)? [y/N]")
            chat.answer("n")
            assert "Nothing was forgotten" in chat.seen
            chat.send("/forget last")
            chat.answer("y")
            chat.sees("Forgotten: 2 messages")
            chat.say("What do I like?")
            assert "apples" in server.requests[-1].context
            assert "zebra17" not in server.requests[-1].context
            # Nor do the keys bring it back.
            chat.key("up")
            chat.recalls("What do I like?", "up")
            chat.key("up")
            chat.sees_at_cursor("/forget last")
            chat.key("up")
            chat.sees_at_cursor("I like apples")
            chat.key("ctrl-c")
            chat.asked()
            chat.send("/forget")
            chat.sees("Permanently forget this session (4 messages")
            chat.answer("yes")
            chat.sees("A new session begins, ")
            assert "secrets" not in chat.say("/sessions")
            chat.leave()
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert here.store in files
        assert not any(b"zebra17" in path.read_bytes() for path in files)


async def test_facts_go_from_chat_to_chat_and_files_in_and_out(tmp_path: Path) -> None:
    with ScriptedServer(otherwise=heard) as server:
        here = home(tmp_path, server)
        with here.chat() as chat:
            assert "No facts yet" in chat.say("/facts")
            assert "Remembered: My name is Ana" in chat.say("/remember My name is Ana")
            assert "My name is Ana" in chat.say("/facts")
            chat.say("Who wins?")
            assert "My name is Ana" in server.requests[0].context

            assert "Wrote 2 messages to notes.md" in chat.say("/export notes.md")
            assert "Heard Who wins?." in (tmp_path / "notes.md").read_text()
            chat.send("/export notes.md")
            chat.sees("notes.md already exists. Overwrite it? [y/N]")
            chat.answer("")
            assert "Nothing was written" in chat.seen
            assert "Wrote 2 messages to lines.jsonl" in chat.say("/export lines.jsonl")
            assert "Imported 2 sessions, 8 messages" in chat.say(f"/import {CLAUDE}")
            assert re.search(r"2  claude:.* Dentist on Wednesday", chat.say("/sessions"))
            assert "identical" in flat(chat.say("/import lines.jsonl"))
            assert "name another file" in chat.say("/import nowhere.json")
            assert "Noted. 🦷" in chat.say("/load 2")
            chat.say("Go on")
            assert "Noted. 🦷" in server.requests[1].context
            assert "My name is Ana" in server.requests[1].context
            chat.leave()


# -------------------------------------------------------------- models and roles


def test_models_and_system_prompts_are_chosen_at_the_start_and_later(tmp_path: Path) -> None:
    script = [
        Say("First.", usage=Usage(input=2000, output=1, cached=1500)),
        "Second.",
        Say(status=404),
        "Third.",
    ]
    with ScriptedServer(script, key="k", models=["small", "large"]) as server:
        here = home(
            tmp_path,
            server,
            KEEPTHREAD_MODEL_PROVIDER="anthropic",
            KEEPTHREAD_MODEL_BASE_URL=server.anthropic,
            ANTHROPIC_API_KEY="k",
        )
        with here.chat("--model", "small", "--system", "Be brief.", "--session", "s") as chat:
            assert "First." in chat.say("Who are you?")
            assert "small is in use (anthropic)" in chat.say("/model")
            assert "large is used for the rest of this chat" in chat.say("/model large")
            assert "Second." in chat.say("And you?")
            chat.sees(re.compile(r"^Who are you\? · large · ", re.MULTILINE))
            assert re.search(r"this session +[\d,]+ +1,500 ", chat.say("/cost"))
            refused = flat(chat.say("/model medium"))
            assert "does not offer medium; did you mean small or large?" in refused
            failed = chat.say("And who are you?")
            assert "error: " in failed
            assert "/retry asks again" in failed
            chat.say("/model small")
            assert "Third." in chat.say("/retry")
            assert "the latest question has an answer" in chat.say("/retry")
            chat.leave()
        models = [(asked.wire, asked.body["model"], asked.system) for asked in server.requests]
        assert [model for _, model, _ in models] == ["small", "large", "large", "small"]
        assert {wire for wire, _, _ in models} == {"anthropic"}
        assert all(system.startswith("Be brief.") for *_, system in models)
        assert server.requests[2].text == "And who are you?"


# ------------------------------------------------------------------- odd things


def test_what_is_typed_wrongly_is_told_and_odd_things_are_said_to_the_model(tmp_path: Path) -> None:
    with ScriptedServer(otherwise=heard) as server, home(tmp_path, server).chat(columns=60) as chat:
        for line, told in (
            ("/hlep", "unknown command /hlep; did you mean /help?"),
            ("/Sessions", "unknown command /Sessions; did you mean /sessions?"),
            ("/xyzzy", "unknown command /xyzzy; /help lists them"),
            ("/", "unknown command /; /help lists them"),
            ("memory:stats", "did you mean memory:status?"),
            ("/rename", "an argument is missing: write /rename TITLE"),
            ("/clear all", "/clear takes no argument"),
            ("/history many", "'many' is not a number of messages"),
            ("/forget me", "write /forget, or /forget last"),
        ):
            assert told in flat(chat.say(line))
        assert server.requests == []
        chat.key("enter")
        chat.send("   ")
        chat.sees(re.compile(r"^>\n>\n>$", re.MULTILINE))
        for line in (
            "/etc/hosts is what?",
            "日本語はどう？" * 12,
            f"{'very ' * 60}long",
            "**\u00e4** <b>&amp; `x` [red]no[/red]",
            "a\u0301 is one letter, and 👩 is wide",
        ):
            chat.say(line)
            assert server.requests[-1].text == line
        chat.say("/rename 日本語のタイトル")
        chat.terminal.resize(100, 30)
        assert "日本語のタイトル" in chat.say("/sessions")
        assert len(server.requests) == 5
        near = flat(chat.say("/load 2026-11"))
        assert re.search(r"there is no session '2026-11'; there is \d{4}-", near)
        chat.leave()


# ------------------------------------------------------------------------ keys


async def test_keys_complete_search_and_break_lines(tmp_path: Path) -> None:
    with ScriptedServer(otherwise=heard) as server:
        here = home(tmp_path, server)
        await here.fill("rainy-days", 1)
        await here.fill("sunny-days", 1)
        with here.chat() as chat:
            chat.terminal.type("/mod")
            chat.key("tab")
            chat.sees_at_cursor("/model")
            chat.terminal.type(" s")
            chat.key("tab")
            chat.sees_at_cursor("/model scripted")
            chat.key("ctrl-c")
            chat.asked()
            # Several ways to go on are listed, with what they mean.
            chat.terminal.type("/re")
            chat.key("tab")
            chat.sees(re.compile(r"^ +/rename +Give this session a title", re.MULTILINE))
            chat.key("ctrl-c")
            chat.asked()
            chat.terminal.type("/load sun")
            chat.key("tab")
            chat.sees_at_cursor("/load sunny-days")
            chat.key("enter")
            chat.sees("Answer 0: ")
            chat.asked()

            _searched(chat, "question 0")
            chat.key("ctrl-c")  # leaves the search, and the line is as before
            chat.asked()
            chat.type("first")
            chat.key("alt-enter")
            chat.type("second")
            chat.key("ctrl-j")
            chat.terminal.paste("/sessions\n\n\tthird")
            chat.sees_at_cursor("third")
            assert server.requests == []
            chat.key("enter")
            chat.asked()
            assert server.requests[0].text == "first\nsecond\n/sessions\n\n\tthird"

            _searched(chat, "SECOND")
            chat.recalls("third", "ctrl-r")
            chat.key("enter")  # takes it
            chat.key("enter")  # sends it
            chat.asked()
            assert server.requests[1].text == server.requests[0].text
            # What is pasted waits for the key that sends it, and may well be a command.
            chat.terminal.paste("/help why\n")
            chat.sees_line("> /help why")
            assert "/why [N]" not in chat.seen
            chat.key("enter")
            chat.sees("/why [N]")
            chat.leave()


def _searched(chat: Chat, words: str) -> None:
    """Search in what was said before."""
    chat.key("ctrl-r")
    chat.terminal.type(words)
    chat.sees(f"I-search backward: {words}")


# ------------------------------------------------------------- from the command line


async def test_sessions_go_on_from_the_command_line_and_pipes(tmp_path: Path) -> None:
    with ScriptedServer(otherwise=heard) as server:
        here = home(tmp_path, server)
        await here.fill("alpha", 1)
        await here.fill("beta", 1)
        done = here.run("chat", "-r", "alpha", "--json", "-p", "one", said="piped\nlines\n")
        told = json.loads(done.stdout)
        assert (told["session"], told["truncated"], done.stderr) == ("alpha", False, b"")
        assert told["answer"] == "Heard one\n\npiped\nlines."
        assert "Answer 0: " in server.requests[0].context
        with here.chat("-c") as chat:
            chat.sees("one, 4 messages")
            assert "Heard one" in chat.say("/history")
            chat.leave()
        with here.start("-r", "alpah") as chat:
            assert chat.ended() == 2
            assert "error: there is no session 'alpah'; there is alpha" in chat.seen
