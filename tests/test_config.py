"""Settings: which layer wins, what is refused, what is written, and what is never shown."""

import asyncio
import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from keepthread import Hybrid, Memory, Recall, View, Window
from keepthread.apps.cli import services
from keepthread.apps.cli.chat.orchestrator import agents_of
from keepthread.apps.cli.settings.load import PROJECT_FILE, Config, project_file, read_config
from keepthread.apps.cli.settings.settings import (
    KEYS,
    AgentSettings,
    EmbedderSettings,
    MemorySettings,
    ModelSettings,
    Price,
    Settings,
    SummarizerSettings,
    settings_of,
    variable_of,
)
from keepthread.apps.cli.wiring import cost_of, memory_arguments, model_of
from keepthread.errors import InvalidInput, ModelDenied
from keepthread.memory.summaries import Compaction
from keepthread.models import AnthropicModel, OpenAIModel
from keepthread.models.embedders import EndpointEmbedder, OnnxEmbedder
from keepthread.models.summarizers import ByModel
from keepthread.models.tokens import VOCABULARIES
from keepthread.testing.model import ScriptedModel
from keepthread.types import Usage
from tests.spent import ENGINES, least_ratio, untraced
from tests.test_cli import ask, keepthread

DOCS = Path(__file__).parents[1] / "docs"
CODE = "import sys; from keepthread.apps.cli import main; sys.exit(main())"
SECRET = "sk-zq9-never-shown"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a project, with a home of its own beside it."""
    place = tmp_path / "home" / "project"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("HOME", str(place.parent))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name)
    return place


def own(folder: Path, text: str = "", **environ: str) -> Mapping[str, str]:
    """Write a person's own settings and return an environment that names them."""
    file = folder.parent / "own.yaml"
    file.write_text(text)
    return {"KEEPTHREAD_CONFIG": str(file), **environ}


def refusal(folder: Path, environ: Mapping[str, str], flags: Mapping[str, Any] = {}) -> str:
    with pytest.raises(InvalidInput) as caught:
        read_config(environ, folder, flags)
    return str(caught.value)


# --- who wins ---

EXAMPLES: Mapping[str, list[Any]] = {
    "memory.enabled": [True, False],
    "memory.tenant": ["a", "b", "c"],
    "memory.owner": ["ana", "bea"],
    "memory.max_history_tokens": [1, 500, 9000],
    "memory.strategy": ["window", "recall", "hybrid"],
    "memory.keep_why": [0, 7],
    "model.provider": ["openai", "anthropic"],
    "model.name": ["m-1", "m-2", "null and void", None],
    "model.max_tokens": [5, None],
    "model.timeout": [0.5, 60.0],
    "model.price.input": [0.0, 1.25, None],
    "summarizer.by": ["extractive", "model"],
    "chat.system": ["Be brief.", "# no comment: 'quoted'\n", None],
    "chat.markdown": [True, False],
    "tokenizer": ["o200k", "cl100k"],
    "compaction.turns": [10, 40],
    "views.router.tokens": [10, 20],
    "views.router.max_messages": [2, None],
    "views.router.tool_calls": ["all", "recent", "none"],
    "views.small_one.tokens": [30],
}
CHOSEN = st.fixed_dictionaries(
    {}, optional={key: st.sampled_from(values) for key, values in EXAMPLES.items()}
)
"""What one layer sets: any of these, to anything."""
BY_A_PROJECT = {
    key: values
    for key, values in EXAMPLES.items()
    if key not in ("memory.tenant", "memory.owner", "model.provider", "chat.system")
}
CHOSEN_BY_A_PROJECT = st.fixed_dictionaries(
    {}, optional={key: st.sampled_from(values) for key, values in BY_A_PROJECT.items()}
)


def nested(values: Mapping[str, Any]) -> str:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        block = tree
        for name in path:
            block = block.setdefault(name, {})
        block[last] = value
    return yaml.safe_dump(tree)


def as_text(value: Any) -> str:
    return "null" if value is None else str(value)


@given(own_values=CHOSEN, project=CHOSEN_BY_A_PROJECT, environment=CHOSEN, flags=CHOSEN)
def test_the_last_layer_that_says_something_wins_and_is_named(
    tmp_path_factory: pytest.TempPathFactory,
    own_values: dict[str, Any],
    project: dict[str, Any],
    environment: dict[str, Any],
    flags: dict[str, Any],
) -> None:
    folder = tmp_path_factory.mktemp("project")
    file = folder / "own.yaml"
    file.write_text(nested(own_values))
    (folder / PROJECT_FILE).write_text(nested(project))
    variables = {variable_of(key): as_text(value) for key, value in environment.items()}
    environ = {"KEEPTHREAD_CONFIG": str(file), "PATH": "/bin", **variables}
    flags = {key: value for key, value in flags.items() if value is not None}
    config = read_config(environ, folder, flags)

    expected = Settings().values()
    sources = dict.fromkeys(expected, "default")
    for layer, name in ((own_values, str(file)), (project, str(folder / PROJECT_FILE))):
        expected |= layer
        sources |= dict.fromkeys(layer, name)
    expected |= environment
    sources |= {key: variable_of(key) for key in environment}
    expected |= flags
    named = {"memory.tenant": "--tenant", "model.name": "--model", "chat.system": "--system"}
    sources |= {key: named.get(key, "the command line") for key in flags}
    if "views.small_one.tokens" in expected:
        others = {"strategy": "window", "max_messages": None, "tool_calls": "recent"}
        for name, value in others.items():
            expected.setdefault(f"views.small_one.{name}", value)
            sources.setdefault(f"views.small_one.{name}", "default")
    assert config.settings.values() == expected
    assert config.sources == sources
    assert settings_of(expected) == config.settings


@pytest.mark.parametrize(("other", "name"), [("simple", "window"), ("summarization", "summarized")])
def test_other_names_of_strategies_are_accepted(folder: Path, other: str, name: str) -> None:
    text = f"memory: {{strategy: {other}}}\nviews: {{mine: {{tokens: 900, strategy: {other}}}}}"
    settings = read_config(own(folder, text), folder).settings
    assert (settings.memory.strategy, settings.views["mine"].strategy) == (name, name)
    environ = {**own(folder), "KEEPTHREAD_MEMORY_STRATEGY": other}
    assert read_config(environ, folder).settings.memory.strategy == name


def test_of_an_address_and_a_path_the_one_set_last_holds(folder: Path) -> None:
    environ = own(folder, "memory: {url: 'redis://h:1'}")
    assert read_config(environ, folder).settings.address == "redis://h:1"
    config = read_config({**environ, "KEEPTHREAD_MEMORY_STORAGE_PATH": "x.db"}, folder)
    assert config.settings.address == "sqlite:///x.db"
    assert config.sources["memory.url"] == "default"
    config = read_config({**environ, "KEEPTHREAD_STORE": "sqlite:///y.db"}, folder)
    assert config.settings.address == "sqlite:///y.db"
    config = read_config(environ, folder, {"memory.url": "ram://"})
    assert (config.settings.address, config.sources["memory.url"]) == ("ram://", "--store")
    both = own(folder, "memory: {url: 'redis://h', storage_path: x.db}")
    assert "memory.url and memory.storage_path exclude each other" in refusal(folder, both)


def test_paths_begin_at_home_or_at_the_file_that_names_them(folder: Path) -> None:
    home = folder.parent
    default = read_config(own(folder), folder).settings
    assert default.address == f"sqlite:///{home}/.local/share/keepthread/memory.db"
    tilde = own(folder, "memory: {storage_path: ~/a b.db}\nembedder: {folder: models/m}")
    settings = read_config(tilde, folder).settings
    assert settings.address == f"sqlite:///{home}/a b.db"
    assert settings.embedder.folder == f"{home}/models/m"


def test_a_project_s_file_is_found_up_to_home_a_repository_or_where_all_may_write(
    folder: Path,
) -> None:
    inner = folder / "a" / "b"
    inner.mkdir(parents=True)
    assert project_file(inner) is None
    for place in (folder.parent, folder, inner):
        (place / PROJECT_FILE).touch()
        assert project_file(inner) == place / PROJECT_FILE
    (inner / PROJECT_FILE).unlink()
    (folder / "a" / ".git").mkdir()
    assert project_file(inner) is None
    (folder / "a" / PROJECT_FILE).touch()
    assert project_file(inner) == folder / "a" / PROJECT_FILE
    (folder / "a" / PROJECT_FILE).unlink()
    (folder / "a" / ".git").rmdir()
    assert project_file(inner) == folder / PROJECT_FILE
    (folder / "a").chmod(0o777)
    assert project_file(inner) is None
    assert project_file(folder / "a") == folder / PROJECT_FILE
    (folder.parent.parent / PROJECT_FILE).touch()
    (folder / PROJECT_FILE).unlink()
    (folder.parent / PROJECT_FILE).unlink()
    assert project_file(folder) is None


def test_agents_are_read_from_a_file_and_from_variables(folder: Path) -> None:
    text = "agents: {sky: {description: Clouds, system_file: sky.md, shared_facts: [a, b]}}"
    variables = {
        "KEEPTHREAD_AGENTS_SKY_TOOLS": "weather, storms",
        "KEEPTHREAD_AGENTS_SKY_SHARED_FACTS": "One.\nTwo.\n",
        "KEEPTHREAD_AGENTS_SKY_FACTS": "yes",
    }
    config = read_config(own(folder, text, **variables), folder)
    assert config.settings.agents["sky"] == AgentSettings(
        description="Clouds",
        system_file=str(folder.parent / "sky.md"),
        tools=("weather", "storms"),
        facts=True,
        shared_facts=("One.", "Two."),
    )
    assert config.sources["agents.sky.tools"] == "KEEPTHREAD_AGENTS_SKY_TOOLS"
    assert config.sources["agents.sky.model"] == "default"
    assert settings_of(config.settings.values()) == config.settings
    assert Settings().agents == {}


def test_a_project_names_no_agents(folder: Path) -> None:
    (folder / PROJECT_FILE).write_text("agents: {sky: {description: Obey me}}")
    assert "a project may not set agents.sky.description" in refusal(folder, own(folder))


# --- what is refused ---


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "memory:\n  max_history_tokens: many",
            ", line 2: memory.max_history_tokens is 'many'; it must be a whole number from 1",
        ),
        ("memory: {max_history_tokens: 0}", "is 0; it must be a whole number from 1"),
        ("memory: {max_history_tokens: true}", "is True; it must be a whole number"),
        ("memory: {max_history_tokens: 1.5}", "is 1.5; it must be a whole number"),
        ("memory: {max_history_tokens: 0x" + "f" * 9000 + "}", "is a int; it must be"),
        ("memory: {enabled: 1}", "memory.enabled is 1; it must be true or false"),
        ("memory: {strategy: best}", "one of window, summarized, hybrid, recall"),
        ("memory: {tenant: 42}", "is 42; it must be a name"),
        ("memory: {tenant: ''}", "is ''; it must be a name"),
        ("memory: {keep_why: null}", "is None; it must be a whole number from 0"),
        ("memory: {auto_prune_days: 0}", "is 0; it must be a whole number from 1, or null"),
        ("model: {timeout: .inf}", "is inf; it must be a number greater than 0"),
        ("model: {retries: 11}", "a whole number from 0 to 10"),
        ("memory: {max_tokens: 1}", "memory.max_tokens is not a setting; did you mean memory.max_"),
        (
            "memroy: {strategy: simple}",
            "memroy.strategy is not a setting; did you mean memory.strat",
        ),
        (
            "memory: {strategy: {simple: 1}}",
            "memory.strategy.simple is not a setting; did you mean",
        ),
        ("zzz: 1", "zzz is not a setting; `keepthread config` lists them all"),
        ("memory: yes", "memory is a block: write its settings below it"),
        ("views: {small: 500}", "views.small is a block"),
        ("views: {small: {tokns: 5}}", "a view has views.NAME.tokens, views.NAME.strategy"),
        ("views: {small: {strategy: recall}}", "views.small.tokens is missing"),
        ("views: {a b: {tokens: 5}}", "a view has views.NAME.tokens"),
        ("views: {chat: {tokens: 5}}", "set by memory.max_history_tokens and memory.strategy"),
        ("embedder: {url: 'http://h', folder: x}", "exclude each other"),
        ("memory: {enabled: true}\nmemory: {enabled: true}", "line 2: memory appears twice"),
        ("memory:\n  enabled: true\n  enabled: false", "line 3: memory.enabled appears twice"),
        ("memory: {enabled: true", "line 2: it cannot be read as YAML"),
        ("memory:\n\tenabled: true", "line 2: it cannot be read as YAML"),
        ("- memory", "it must be blocks of settings"),
        ("just words", "it must be blocks of settings"),
        ("memory: {}\n---\nmemory: {}", "line 2: the file has a second document"),
        ("chat: {system: [a, b]}", "chat.system is a list; it must be a text"),
        (
            "agents: {sky: {tools: [a]}}",
            "agents.sky.description is missing: what is the agent for?",
        ),
        (
            "agents: {sky: {descripton: x}}",
            "agents.sky.descripton is not a setting; did you mean agents.sky.description? an agent",
        ),
        ("agents: {sky: 5}", "agents.sky is a block"),
        ("agents: {a b: {description: x}}", "an agent has agents.NAME.description"),
        (
            "agents: {sky: {description: [x]}}",
            "agents.sky.description is a list; it must be a text",
        ),
        ("agents: {sky: {description: x, tools: 5}}", "is 5; it must be one or several names"),
        ("agents: {sky: {description: x, tools: [1]}}", "it must be one or several names"),
        ("agents: {sky: {description: x, tools: [[a]]}}", "an entry of agents.sky.tools must be"),
        ("agents: {sky: {description: x, facts: [a]}}", "is a list; it must be true or false"),
        (
            "agents: {sky: {description: x, system: y, system_file: z}}",
            "agents.sky.system and agents.sky.system_file exclude each other",
        ),
        ("? [a]\n: 1", "the name of a setting must be one word"),
        ("chat: {system: !!python/object/apply:os.system [id]}", "has a tag"),
        ("chat: {system: !!binary aGk=}", "has a tag"),
        ("a: &x {b: 1}\nc: *x", "has an anchor or alias"),
        ("memory: *nowhere", "has an anchor or alias"),
        ("memory: {<<: {enabled: false}}", "memory.<<.enabled is not a setting"),
        ("[" * 200_000, "it must be blocks of settings"),
        ("{a: " * 200_000, "is nested too deeply"),
        ("chat: {system: \x00}", "it cannot be read as YAML"),
        ("#" * 1_100_000, "is larger than 1 MB"),
    ],
)
def test_a_file_that_is_wrong_says_where_and_what_is_expected(
    folder: Path, text: str, says: str
) -> None:
    environ = own(folder, text)
    error = refusal(folder, environ)
    assert says in error
    assert error.startswith(environ["KEEPTHREAD_CONFIG"])
    assert len(error) < 400


def test_what_looks_like_a_date_is_a_text(folder: Path) -> None:
    for name in ("2026-02-28", "2026-02-30", "2026-02-28 12:30:00"):
        config = read_config(own(folder, f"model: {{name: {name}}}"), folder)
        assert config.settings.model.name == name


def test_bytes_that_are_no_text_are_refused(folder: Path) -> None:
    environ = own(folder)
    Path(environ["KEEPTHREAD_CONFIG"]).write_bytes(b"chat: {system: \xff}")
    assert "cannot be read" in refusal(folder, environ)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"KEEPTHREAD_MEMORY_ENABLED": "maybe"}, "MEMORY_ENABLED is 'maybe'; it must be true or"),
        ({"KEEPTHREAD_MODEL_RETRIES": "two"}, "MODEL_RETRIES is 'two'; it must be a whole number"),
        ({"KEEPTHREAD_MODEL_NMAE": "x"}, "is not a setting; did you mean KEEPTHREAD_MODEL_NAME?"),
        ({"KEEPTHREAD_MEMORY_URL": "x"}, "is not a setting; did you mean KEEPTHREAD_STORE?"),
        ({"KEEPTHREAD_VIEWS_SMALL_TOKENS": "no"}, "is 'no'; it must be a whole number"),
        ({"KEEPTHREAD_VIEWS_SMALL": "5"}, "a view has views.NAME.tokens"),
        ({"KEEPTHREAD_CONFIG": "/no/where.yaml"}, "/no/where.yaml, which does not exist"),
    ],
)
def test_a_variable_that_is_wrong_says_what_is_expected(
    folder: Path, environ: dict[str, str], says: str
) -> None:
    assert says in refusal(folder, {**own(folder), **environ})


def test_variables_of_others_and_empty_ones_say_nothing(folder: Path) -> None:
    strange = {"KEEPTHREAD_TEST_DATA": "x", "KEEPTHREAD": "y", "MODEL_NAME": "z"}
    config = read_config({**own(folder), **strange, "KEEPTHREAD_MODEL_NAME": ""}, folder)
    assert config.settings == Settings()


@pytest.mark.parametrize(
    ("address", "right"),
    [
        ("http://localhost:11434/v1", True),
        ("https://[::1]:8080", True),
        ("http:///v1", False),
        ("http://a b", False),
        ("http://h\n", False),
        ("file:///etc/passwd", False),
        ("localhost:11434", False),
    ],
)
def test_an_address_is_one_of_the_web(folder: Path, address: str, right: bool) -> None:
    environ = own(folder, KEEPTHREAD_MODEL_BASE_URL=address)
    if right:
        assert read_config(environ, folder).settings.model.base_url == address
    else:
        assert "must be an address such as http://" in refusal(folder, environ)


def test_a_wrong_flag_is_named_by_its_name(folder: Path) -> None:
    assert "--model is '\\n'; it must be" in refusal(folder, own(folder), {"model.name": "\n"})


def test_a_project_sets_no_address_key_order_or_end_of_conversations(folder: Path) -> None:
    values = {"memory.auto_prune_days": 1, "embedder.name": "x", "embedder.key_env": "X"}
    values |= {"memory.url": "ram://", "memory.storage_path": "x", "embedder.folder": "x"}
    values |= {"model.base_url": "http://h", "model.key_env": "X", "embedder.url": "http://h"}
    values |= {"discord.base_url": "http://h", "discord.token_env": "X", "discord.guilds": 12}
    values |= {"discord.direct": True, "discord.listen": True, "memory.recall": "owner"}
    values |= {"model.provider": "anthropic", "chat.system": "Obey.", "chat.orchestrate": True}
    values |= {"memory.tools": True, "chat.allowed_tools": "a/b", "discord.allowed_tools": "a/b"}
    values |= {"model.key_command": "op read x", "memory.owner": "x", "memory.tenant": "x"}
    values |= {"discord.channels": 12, "discord.session": "channel"}
    texts = "host tls_cert tls_key metrics_host allowed_hosts allowed_origins issuer audience jwks"
    texts += " algorithms token_tenant tenant_claim owner_claim scope_claim"
    numbers = "port workers metrics_port rate burst concurrency deadline stop_delay drain"
    values |= {f"server.{name}": "x" for name in texts.split()}
    values |= {f"server.{name}": 1 for name in numbers.split()}
    values |= {"server.audit_days": 90, "proxy.port": 1, "proxy.deadline": 1}
    values |= {"proxy.openai": "http://h", "proxy.anthropic": "http://h", "proxy.strict": True}
    assert values.keys() == {key for key in KEYS if not KEYS[key].metadata["project"]}
    for key, value in values.items():
        (folder / PROJECT_FILE).write_text(nested({key: value}))
        error = refusal(folder, own(folder))
        assert f"a project may not set {key}: put it in your own config.yaml" in error
        assert (f"or set {variable_of(key)}" in error) == (key != "model.key_command")
        assert key in read_config(own(folder, nested({key: value})), folder.parent).sources
    (folder / PROJECT_FILE).write_text(nested({k: v[0] for k, v in BY_A_PROJECT.items()}))
    assert read_config(own(folder), folder).settings.views["router"].tokens == 10


@pytest.mark.parametrize("key", ["owner", "tenant"])
@pytest.mark.parametrize(
    "form", ["memory: {%s: private}", "memory.%s: private", '"mem\\u006fry":\n  %s: "private"']
)
def test_no_program_uses_the_memory_that_a_repository_names(
    folder: Path, key: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEPTHREAD_STORE", f"sqlite:///{folder.parent / 'm.db'}")

    async def note() -> None:
        tenant, owner = ("private", "default") if key == "tenant" else ("default", "private")
        url = os.environ["KEEPTHREAD_STORE"]
        async with Memory.open(url, tenant=tenant) as memory:
            await memory.for_owner(owner).facts.remember("The PIN is 4711.")

    asyncio.run(note())
    assert "4711" in keepthread("facts", f"--{key}", "private").stdout
    (folder / PROJECT_FILE).write_text(form % key)
    programs = (
        ("facts",),
        ("search", "PIN"),
        ("export",),
        ("chat", "-p", "What is the PIN?"),
        ("mcp",),
        ("mcp", "install", "codex"),
        ("discord",),
        ("serve",),
        ("proxy",),
    )
    for program in programs:
        done = keepthread(*program)
        assert done.returncode == 2, program
        assert f"a project may not set memory.{key}" in done.stderr
        assert "4711" not in done.stdout + done.stderr


def test_what_a_project_sets_is_announced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / PROJECT_FILE).write_text(
        "model: {name: Zoë}\nmemory: {strategy: recall}\nviews: {router: {tokens: 9}}"
    )
    monkeypatch.setenv("KEEPTHREAD_MEMORY_STRATEGY", "simple")
    result = keepthread("config", "model.name")
    assert (
        f"{folder / PROJECT_FILE} sets model.name = 'Zo\\xeb', views.router.tokens = 9\n"
        in result.stderr
    )
    assert "memory.strategy" not in result.stderr, "the environment decides it"
    first, *_ = keepthread("--json", "config").stderr.splitlines()
    assert json.loads(first)["note"].startswith(f"{folder / PROJECT_FILE} sets model.name")
    (folder / PROJECT_FILE).write_text("")
    assert read_config(own(folder), folder).notes == []


@pytest.mark.skipif(os.name != "posix", reason="files have no owner's number here")
def test_another_user_s_project_file_is_not_used_and_that_is_announced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder / PROJECT_FILE
    file.write_text("memory: {owner: mallory}\nmodel: {provider: anthropic}")
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    config = read_config(own(folder), folder)
    assert config.settings.memory.owner == "default"
    assert config.notes == [f"{file} is not used: it belongs to another user"]


# --- what is secret ---


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("model.key", "model"),
        ("model.api_key", "model"),
        ("model.api-key", "model"),
        ("model.openai_api_key", "model"),
        ("summarizer.key", "model"),
        ("embedder.key", "embedder"),
        ("OPENAI_API_KEY", "model"),
        ("memory.password", "model"),
    ],
)
def test_a_key_in_a_file_is_refused_and_not_shown(folder: Path, key: str, named: str) -> None:
    for place in (folder.parent / "own.yaml", folder / PROJECT_FILE):
        environ = own(folder)
        place.write_text(nested({key: SECRET}))
        error = refusal(folder, environ)
        assert "keys come from the environment: export OPENAI_API_KEY=…" in error
        assert f"or set {named}.key_env to another variable" in error
        assert SECRET not in error


@pytest.mark.parametrize("key", ["model.key_env", "embedder.key_env", "model.base_url"])
def test_a_secret_in_the_wrong_place_is_not_shown(folder: Path, key: str) -> None:
    for text, variables in ((nested({key: SECRET}), {}), ("", {variable_of(key): SECRET})):
        error = refusal(folder, own(folder, text, **variables))
        assert "is not shown" in error
        assert SECRET not in error
    error = refusal(folder, {**own(folder), "KEEPTHREAD_MODEL_KEY": SECRET})
    assert "keys come from the environment" in error
    assert SECRET not in error


def test_config_shows_whether_keys_are_set_and_addresses_without_passwords(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "OPENAI_API_KEY": SECRET,
        "KEEPTHREAD_STORE": f"postgresql://ana:{SECRET}@db.example/x",
        "KEEPTHREAD_MODEL_BASE_URL": f"https://ana:{SECRET}@gate.example/v1",
        "KEEPTHREAD_EMBEDDER_URL": f"https://gate.example/v1?key={SECRET}",
        "KEEPTHREAD_EMBEDDER_KEY_ENV": "OTHER_KEY",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    for result in (keepthread("config"), keepthread("config", "--json")):
        assert result.returncode == 0, result.stderr
        assert SECRET not in result.stdout + result.stderr
    (shown,) = ask("config")
    assert shown["memory.url"]["value"] == "postgresql://db.example/…"
    assert shown["model.key"] == {"value": "set", "from": "OPENAI_API_KEY"}
    assert shown["embedder.key"] == {"value": "not set", "from": "OTHER_KEY"}
    assert shown["model.base_url"]["value"] == "https://gate.example/…"
    assert shown["embedder.url"]["value"] == "https://gate.example/…"


# --- the command `config` ---


def test_config_shows_each_value_and_where_it_comes_from(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / PROJECT_FILE).write_text("memory: {strategy: recall}")
    monkeypatch.setenv("KEEPTHREAD_CHAT_SYSTEM", "a\x1b[31mb")
    result = keepthread("config", "--tenant", "t")
    rows = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert rows.keys() >= KEYS.keys(), result.stderr
    project = re.escape(str(folder / PROJECT_FILE))
    assert re.fullmatch(rf"memory.strategy +recall +{project} *", rows["memory.strategy"])
    assert re.fullmatch(r"memory.tenant +t +--tenant *", rows["memory.tenant"])
    assert re.fullmatch(r"model.key +not set +OPENAI_API_KEY *", rows["model.key"])
    assert re.fullmatch(r"memory.enabled +true +default *", rows["memory.enabled"])
    assert re.fullmatch(r"model.max_tokens +none +default *", rows["model.max_tokens"])
    assert "a\\x1b[31mb" in rows["chat.system"]
    assert "`keepthread init` writes it" in result.stderr
    one = keepthread("config", "memory.strategy").stdout.splitlines()
    assert [line.split() for line in one[1:]] == [rows["memory.strategy"].split()]
    assert len(keepthread("config", "model.price").stdout.splitlines()) == 4
    assert "No agents are defined" in keepthread("config", "agents").stderr
    monkeypatch.setenv("KEEPTHREAD_AGENTS_SKY_DESCRIPTION", "Clouds")
    monkeypatch.setenv("KEEPTHREAD_AGENTS_SKY_TOOLS", "weather,storms")
    agent = keepthread("config", "agents").stdout
    assert re.search(r"agents.sky.tools +weather, storms +KEEPTHREAD_AGENTS_SKY_TOOLS", agent)
    assert re.search(r"agents.sky.shared_facts +none +default", agent)
    (answer,) = ask("config", "memory.strategy")
    source = str(folder / PROJECT_FILE)
    assert answer == {"memory.strategy": {"value": "recall", "from": source}}
    wrong = keepthread("config", "memory.stratgy")
    assert wrong.returncode == 2
    assert "did you mean memory.strategy?" in wrong.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("get", "model.name"), "to show a setting, write `keepthread config model.name`"),
        (("get", "model"), "to show a setting, write `keepthread config model`"),
        (("get", "model.nam"), "model.nam is not a setting; did you mean model.name?"),
        (("get", "xyzzy"), "to show a setting, write `keepthread config KEY`"),
        (("sett", "model.name", "m"), "did you mean `keepthread config set`?"),
        (("memory.stratgy", "hybrid"), "did you mean memory.strategy?"),
        (("model.name", "a b"), "`keepthread config set model.name 'a b'`"),
    ],
)
def test_words_that_config_does_not_take_are_answered_with_those_it_takes(
    folder: Path, words: tuple[str, ...], hint: str
) -> None:
    result = keepthread("config", *words)
    assert result.returncode == 2
    assert hint in " ".join(result.stderr.split())
    assert "config set get" not in result.stderr


# --- what becomes of settings ---


@pytest.mark.parametrize(
    ("written", "reason"),
    [(None, "No such file"), (b"\xff", "it is not UTF-8"), (b"x" * 1_100_000, "larger than 1 MB")],
)
def test_an_agents_prompt_that_cannot_be_read_is_named(
    tmp_path: Path, written: bytes | None, reason: str
) -> None:
    file = tmp_path / "sky.md"
    if written is not None:
        file.write_bytes(written)
    agent = AgentSettings(description="Clouds", system_file=str(file))
    with pytest.raises(InvalidInput, match=rf"agents\.sky\.system_file is .*{reason}"):
        agents_of(Settings(agents={"sky": agent}), {})
    file.write_text("You are the sky.")
    (named,) = agents_of(Settings(agents={"sky": agent}), {})
    assert (named.system_prompt, named.model, named.tools) == ("You are the sky.", None, ())


def test_a_model_is_made_of_settings_and_says_what_is_missing() -> None:
    keys = {"OPENAI_API_KEY": "a", "ANTHROPIC_API_KEY": "b"}
    assert isinstance(model_of(ModelSettings(name="m"), keys), OpenAIModel)
    assert isinstance(model_of(ModelSettings(provider="anthropic", name="m"), keys), AnthropicModel)
    assert model_of(ModelSettings(name="m"), keys, name="other").name == "other"
    local = ModelSettings(name="m", base_url="http://localhost:11434/v1")
    assert isinstance(model_of(local, {}), OpenAIModel)
    with pytest.raises(InvalidInput, match="run `keepthread init`, or use --model NAME"):
        model_of(ModelSettings(), keys)
    for settings, variable in (
        (ModelSettings(name="m"), "OPENAI_API_KEY"),
        (ModelSettings(name="m", base_url="https://api.openai.com/v1"), "OPENAI_API_KEY"),
        (ModelSettings(name="m", provider="anthropic"), "ANTHROPIC_API_KEY"),
        (ModelSettings(name="m", key_env="MINE"), "MINE"),
    ):
        said = re.escape(
            f"no API key is set: export {variable}=… (model.key_env changes the variable),"
            " or run `keepthread init`"
        )
        with pytest.raises(ModelDenied, match=said):
            model_of(settings, {variable: ""})


async def test_a_memory_is_opened_as_the_settings_say(test_data: Path) -> None:
    settings = settings_of(
        {
            "memory.max_history_tokens": 777,
            "memory.tenant": "t",
            "views.small.tokens": 99,
            "views.small.strategy": "recall",
            "views.router.tokens": 600,
        }
    )
    given = memory_arguments(settings, environ={})
    async with Memory.open("ram://", **given) as memory:
        assert memory.views == {
            "chat": View(777, Hybrid(tool_calls="recent")),
            "router": View(600, Window(tool_calls="none")),
            "planner": View(1000, Window(tool_calls="none")),
            "small": View(99, Recall(tool_calls="recent")),
        }
    assert given.keys() == {"tenant", "keep_why", "views", "recall", "compaction"}
    assert given["recall"] == "session"
    sizes = settings.compaction
    assert {name: getattr(given["compaction"], name) for name in vars(sizes)} == vars(sizes)
    assert {name: getattr(Compaction(), name) for name in vars(sizes)} == vars(sizes)
    assert Settings().tokenizer == VOCABULARIES[0]
    assert (given["tenant"], given["keep_why"]) == ("t", 20)

    chat = ScriptedModel([])
    by_model = settings_of({"summarizer.by": "model", "model.base_url": "http://localhost/v1"})
    assert memory_arguments(by_model, chat, {})["compaction"].summarizer == ByModel(chat)
    named = Settings(model=by_model.model, summarizer=SummarizerSettings(by="model", name="small"))
    assert memory_arguments(named, chat, {})["compaction"].summarizer.name == "model:small"

    folder = str(test_data / "models" / "all-MiniLM-L6-v2-int8")
    onnx = Settings(embedder=EmbedderSettings(folder=folder))
    assert isinstance(memory_arguments(onnx, environ={})["embedder"], OnnxEmbedder)
    endpoint = EmbedderSettings(url="http://localhost/v1", name="e", key_env="K")
    made = memory_arguments(Settings(embedder=endpoint), environ={"K": SECRET})["embedder"]
    assert isinstance(made, EndpointEmbedder)
    with pytest.raises(InvalidInput, match="K, which is not set: export it"):
        memory_arguments(Settings(embedder=endpoint), environ={})
    with pytest.raises(InvalidInput, match=r"embedder\.url is set but embedder\.name is not"):
        memory_arguments(Settings(embedder=EmbedderSettings(url="http://h")), environ={})


def test_what_an_answer_cost_is_known_if_prices_are() -> None:
    usage = Usage(input=1_000_000, output=500_000, cached=400_000)
    assert cost_of(usage, Price()) is None
    assert cost_of(usage, Price(input=2.0)) is None
    assert cost_of(usage, Price(input=2.0, output=8.0)) == pytest.approx(6.0)
    assert cost_of(usage, Price(input=2.0, cached=0.5, output=8.0)) == pytest.approx(5.4)


async def _talk(url: str) -> None:
    async with Memory.open(url) as memory:
        await (await memory.session("a")).add_message("user", "Hello")


def test_the_store_of_the_settings_serves_every_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = own(folder, "memory: {storage_path: sub/mine.db, tenant: t}")
    monkeypatch.setenv("KEEPTHREAD_CONFIG", environ["KEEPTHREAD_CONFIG"])
    other = ("--store", "sqlite:///other.db", "--tenant", "default")
    asyncio.run(_talk("sqlite:///other.db"))
    keepthread("export", "-o", "talk.jsonl", *other)
    made = keepthread("import", "talk.jsonl")
    assert made.returncode == 0, made.stderr
    assert (folder.parent / "sub" / "mine.db").is_file()
    assert [each["id"] for each in ask("sessions")] == ["a"]
    assert ask("sessions", "--tenant", "other") == []
    assert "no store at nope.db" in keepthread("sessions", "--store", "sqlite:///nope.db").stderr


# --- init ---


class Typed:
    """The command in a real terminal, where each question is waited for and answered."""

    def __init__(self, *arguments: str) -> None:
        self.pid, self._screen = pty.fork()
        if self.pid == 0:  # pragma: no cover - another process
            os.execv(sys.executable, [sys.executable, "-c", CODE, *arguments])
        self.seen = ""
        self._read = 0

    def answer(self, question: str, text: str) -> None:
        """Type an answer once its question stands there, behind what was seen before."""
        while question not in self.seen[self._read :]:
            assert self._more(), self.seen
        self._read = len(self.seen)
        os.write(self._screen, text.encode())

    def interrupt(self) -> int:
        """Type Ctrl-C until it ends: one that comes just before it listens is not heard."""
        going = True
        while going:
            if select.select([self._screen], [], [], 1)[0]:
                going = self._more()
            else:
                os.write(self._screen, b"\x03")
        return self.end()

    def end(self) -> int:
        """Return the exit status, all read."""
        while self._more():
            pass
        os.close(self._screen)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _more(self) -> bool:
        if not select.select([self._screen], [], [], 60)[0]:
            return False
        try:
            data = os.read(self._screen, 65536)
        except OSError:  # Linux says so when the other side is closed
            return False
        self.seen += re.sub(r"\x1b\[[0-9;]*m", "", data.decode())
        return bool(data)


@pytest.fixture
def offering() -> Iterator[str]:
    """Give the address of a service that says which models it has, and takes what it is sent."""

    class Service(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/v1/models"
            names = [{"id": "old", "created": 1}, {"id": "new\x1b[31m", "created": 3}, {"id": "m"}]
            body = json.dumps({"data": [*names, {"id": 5}, {"id": "newer", "created": 2}]})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def written(folder: Path) -> Config:
    return read_config({}, folder)


def test_init_asks_five_questions_and_enter_takes_the_default(folder: Path) -> None:
    home = folder.parent
    init = Typed("init")
    asked = ("Service [openai]: ", "Model [", "Keep conversations in [", "activity [never")
    for question in (*asked, "recall older ones? [y/N]: "):
        init.answer(question, "\n")
    assert init.end() == 0, init.seen
    assert "export OPENAI_API_KEY=…  (your API key; it is stored in no file)" in init.seen
    assert init.seen.rstrip().endswith("keepthread chat")
    file = home / ".config/keepthread/config.yaml"
    assert "Wrote ~/.config/keepthread/config.yaml" in init.seen
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in file.parent.iterdir()] == ["config.yaml"]
    config = written(folder)
    model = ModelSettings(name="gpt-6.1-terra")
    memory = MemorySettings(storage_path="~/.local/share/keepthread/memory.db")
    assert config.settings == Settings(model=model, memory=memory)
    keys = [key for key, source in config.sources.items() if source == str(file)]
    for key in keys:
        name = key.rpartition(".")[2]
        assert f"  # {KEYS[key].metadata['meaning']}\n  {name}: " in file.read_text()


def test_init_asks_again_after_a_wrong_answer_and_says_why(folder: Path, offering: str) -> None:
    (folder / "plain").touch()
    init = Typed("init")
    init.answer("Service [openai]: ", "bard\n")
    init.answer("'bard' is not a known service; choose one of openai, anthropic, ollama", "4\n")
    init.answer("Its URL [", "ftp://x\n")
    init.answer("give an address such as http://localhost:11434/v1", "https://a:b@c/v1\n")
    init.answer("without a name or a password", f"{offering}/\n")
    init.answer("It offers newer, old, m\r\nModel [newer]: ", "mine: 'odd' 日本\n")
    init.answer("Keep conversations in [", "redis://h\n")
    init.answer("to use a URL, set KEEPTHREAD_STORE", f"{folder}\n")
    init.answer("is not a file; give one", "plain/y.db\n")
    init.answer(f"{folder}/plain is not writable", "talks/my: db\n")
    init.answer("activity [never]: ", "0\n")
    init.answer("'0' is not a number of days (1 or more)", "30\n")
    init.answer("recall older ones? [y/N]: ", "y\n")
    assert init.end() == 0, init.seen
    assert "export MODEL_API_KEY=…  (if the service requires a key)" in init.seen
    settings = written(folder).settings
    assert settings.model.name == "mine: 'odd' 日本"
    assert (settings.model.base_url, settings.model.key_env) == (offering, "MODEL_API_KEY")
    assert settings.memory.path == folder / "talks/my: db"
    assert (settings.memory.auto_prune_days, settings.memory.recall) == (30, "owner")


def test_init_overwrites_nothing_without_asking(folder: Path) -> None:
    file = folder.parent / ".config/keepthread/config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("memory: broken [")
    init = Typed("init")
    init.answer(f"{file} already exists. Change it? [y/N]: ", "\n")
    assert init.end() == 0
    assert "Nothing was changed" in init.seen
    init = Typed("init")
    init.answer("Change it? [y/N]: ", "y\n")
    init.answer("Service [openai]: ", "")
    assert init.interrupt() == 2
    assert "stopped before anything was done" in init.seen
    flags = ("--service", "ollama", "--model", "m", "--path", "x.db", "--prune-days", "never")
    refused = keepthread("init", *flags)
    assert refused.returncode == 2
    assert f"{file} already exists; use --yes" in refused.stderr
    assert file.read_text() == "memory: broken ["
    elsewhere = folder / "dotfiles.yaml"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert keepthread("init", *flags, "--yes").returncode == 0
    assert file.is_symlink()
    assert elsewhere.stat().st_mode & 0o777 == 0o600
    assert written(folder).settings.model.base_url == "http://localhost:11434/v1"
    assert file.with_name("config.yaml.bak").read_text() == "memory: broken ["


def test_init_keeps_what_was_written_by_hand(folder: Path) -> None:
    file = folder.parent / ".config/keepthread/config.yaml"
    file.parent.mkdir(parents=True)
    by_hand = """\
# mine
model:
  name: qwen3  # the one I like
  base_url: http://localhost:1234/v1
memory:
  max_history_tokens: 9000
chat: {system: "Be brief."}
"""
    file.write_text(by_hand)
    assert keepthread("init", "--yes").returncode == 0
    kept = written(folder).settings
    assert (kept.model.name, kept.memory.max_history_tokens) == ("qwen3", 9000)
    assert kept.model.base_url == "http://localhost:1234/v1"
    assert "# the one I like" in file.read_text()
    changed = keepthread("init", "--yes", "--model", "other")
    assert changed.returncode == 0
    assert "-  name: qwen3  # the one I like" in changed.stderr
    assert '+  name: "other"  # the one I like' in changed.stderr
    assert "The previous version was saved" in changed.stderr
    assert "qwen3" in file.with_name("config.yaml.bak").read_text()
    again = keepthread("init", "--yes", "--model", "other")
    assert "it is unchanged" in again.stderr
    moved = keepthread("init", "--yes", "--service", "anthropic")
    assert moved.returncode == 0, moved.stderr
    after = written(folder).settings
    assert (after.model.provider, after.model.base_url) == ("anthropic", None)
    assert after.chat.system == "Be brief."


def test_init_needs_no_terminal_if_all_is_given(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEPTHREAD_CONFIG", str(folder / "deep" / "c.yaml"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    refused = keepthread("init", "--service", "openai")
    assert refused.returncode == 2
    assert "give --service, --model, --path and --prune-days, or --yes" in refused.stderr
    for wrong, says in (
        (("--service", "bard"), "'bard' is not a known service"),
        (("--service", "other"), 'give the URL instead of "other"'),
        (("--service", "http://localhost:9/v1"), "give --model"),
        (("--prune-days", "soon"), "'soon' is not a number of days"),
        (("--model", ""), "a model's name is"),
    ):
        refused = keepthread("init", "--yes", *wrong)
        assert refused.returncode == 2
        assert says in refused.stderr
    assert not (folder / "deep").exists()
    (answer,) = ask("init", "--yes", "--prune-days", "90")
    assert answer["file"] == str(folder / "deep" / "c.yaml")
    assert answer["settings"]["model.provider"] == "anthropic"
    assert answer["settings"]["memory.auto_prune_days"] == 90
    assert answer["next"] == ["keepthread chat"]
    assert SECRET not in Path(answer["file"]).read_text()
    config = read_config(os.environ, folder)
    assert config.settings.model.name == "claude-sonnet-5-5"


def test_a_service_that_does_not_answer_or_sends_elsewhere_gives_no_hints(offering: str) -> None:
    asked: list[str | None] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["Authorization"])
            self.send_response(302)
            self.send_header("Location", f"{offering}/models")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    assert len(services.models_at(services.service_at(offering), None).names) == 4
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = services.service_at(f"http://127.0.0.1:{server.server_port}/v1")
        assert services.models_at(there, SECRET).names == ()
        server.shutdown()
    assert asked == [f"Bearer {SECRET}"]
    silent = services.models_at(services.service_at("http://127.0.0.1:1/v1"), None)
    assert (silent.names, silent.answers) == ((), False)
    assert services.models_at(services.SERVICES[0], None) == services.ModelList()


def test_the_models_that_init_proposes_are_known_to_the_sdks() -> None:
    from anthropic.types import Model
    from openai.types import ChatModel

    openai, anthropic, *_ = services.SERVICES
    assert openai.model in get_args(ChatModel)
    known = {name for part in get_args(Model) for name in get_args(part)}
    assert anthropic.model in known


# --- what it costs, and what the manual says ---


COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}  # as installed programs are


@pytest.mark.serial
def test_reading_settings_costs_less_than_importing_the_engines(folder: Path) -> None:
    (folder / PROJECT_FILE).write_text("memory: {strategy: recall}\n")
    environ = own(folder, nested({key: value[0] for key, value in EXAMPLES.items()}))
    code = (
        "import keepthread.apps.cli.app, keepthread.memory.memory, os, pathlib, time;"
        "before = time.process_time();"
        "from keepthread.apps.cli.settings.load import read_config;"
        "config = read_config(os.environ, pathlib.Path.cwd());"
        "print(time.process_time() - before, config.settings.memory.strategy)"
    )
    engines = (
        f"import time; before = time.process_time(); {ENGINES};"
        "print(time.process_time() - before, 'recall')"
    )
    env = {**untraced(), **environ, **COMPILED}

    def cpu(code: str) -> float:
        command = [sys.executable, "-c", code]
        told = subprocess.run(command, check=True, env=env, capture_output=True)
        took, strategy = told.stdout.split()
        assert strategy == b"recall"
        return float(took)

    ratio = least_ratio(lambda: cpu(code), lambda: cpu(engines), 0.9)
    print(f"reading two files of settings: {ratio:.2f} times {ENGINES}")
    assert ratio <= 0.9


def test_the_examples_of_the_manual_can_be_read(folder: Path) -> None:
    page = (DOCS / "how-to" / "configure.md").read_text()
    mine, project = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (folder / PROJECT_FILE).write_text(project)
    config = read_config(own(folder, mine), folder)
    assert config.settings.model.price.output == 2
    assert config.settings.memory.strategy == "recall"
    for variable in re.findall(r"KEEPTHREAD_[A-Z_]+(?==)", page):
        assert variable in {variable_of(key) for key in KEYS}
