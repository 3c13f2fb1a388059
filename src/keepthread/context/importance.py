"""Importance: decisions, constraints and preferences to keep verbatim, found by cue words."""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from keepthread.context.digest import sentences
from keepthread.context.quoting import flat
from keepthread.types import Importance, Message


class Cue(NamedTuple):
    """Words that classify a sentence; `pattern` is a regular expression, case-insensitive."""

    kind: str
    weight: float
    pattern: str
    answers: bool = False
    """True if it also counts in an answer, where most orders and tastes are only advice."""


_DECISION: Final = "a decision"
_RULE: Final = "a constraint"
_TASTE: Final = "a preference"
_KEEP: Final = "a request to remember"

# Strings, compiled when first used: importing keepthread must stay fast.
# Every pattern asks for a person or an order: "must" alone is in every manual, and "I love it" in
# every chat. `^` is the start of a sentence.
CUES: Final = (
    # In answers, only what both agreed on: "remember to save" is advice.
    Cue(_DECISION, 0.9, r"\bwe(?:['’]ve| have)?(?: all| both| now)? (?:decided|agreed)\b", True),
    Cue(_DECISION, 0.9, r"^(?:decision|decided|agreed):", True),
    Cue(_KEEP, 0.9, r"\bfrom now on,? i(?:['’]ll| will)\b|\bi(?:['’]ll| will) remember\b", True),
    Cue(_KEEP, 0.9, r"\b(?:keep|bear) in mind that\b|\b(?:make a note|don['’]t forget) that\b"),
    Cue(_KEEP, 0.9, r"^(?:please |and |so )*(?:remember|note)(?::| that| (?:my|our|i|we)\b)"),
    Cue(_KEEP, 0.9, r"\b(?:from now on|going forward|henceforth)\b"),
    # An order begins the sentence; "always happy to help" and "never done it" are not orders.
    Cue(
        _RULE,
        0.9,
        r"^(?:please |and |but |so )*(?:always|never) (?!(?:a|an|the|been|up|here|there|happy|glad"
        r"|good|great|nice|fun|mind|heard|had|done|saw|seen|knew|thought|\w+ing|\w+ed)\b)\w+",
    ),
    Cue(_RULE, 0.8, r"\b(?:please|should|must|shall) (?:always|never)\b"),
    Cue(
        _RULE, 0.8, r"^(?:please |and |but |so )*(?:do not|don['’]t) (?:ever|use|include|mention)\b"
    ),
    # "It must be lovely" guesses; "it must be under 2 MB" demands.
    Cue(
        _RULE,
        0.7,
        r"\b(?:it|we|they|this|there) (?:mustn['’]t|must (?:not|never|only|stay|fit|work|run"
        r"|support|be (?:able|at (?:least|most)|under|below|within|no|less|more|in|on|by)))\b",
    ),
    Cue(_RULE, 0.7, r"\b(?:hard (?:limit|requirement)|non-negotiable|under no circumstances)\b"),
    Cue(_RULE, 0.7, r"\b(?:the|my|our|a) (?:deadline|budget|limit) (?:is|was|of|stays)\b"),
    Cue(_RULE, 0.7, r"\b(?:i am|i['’]m|we are|we['’]re) allergic\b"),
    # Who has decided, not who wonders: "to decide" and "have not decided" do not count.
    Cue(_DECISION, 0.9, r"\bi(?:['’]ve| have)?(?: finally| just| already)? (?:decided|agreed)\b"),
    Cue(_DECISION, 0.8, r"\b(?:i|we)(?:['’]ve| have)?(?: just| already)? (?:chose|chosen|opted)\b"),
    Cue(_DECISION, 0.8, r"\b(?:let['’]s|(?:i|we)(?:['’]ll| will)) (?:go with|stick (?:to|with))\b"),
    Cue(_DECISION, 0.8, r"\b(?:the|our|my) (?:final )?decision is\b|\bit is settled\b"),
    Cue(_TASTE, 0.8, r"\b(?:i|we)(?: really| much| also| usually|['’]d| would)? prefer\b"),
    Cue(_TASTE, 0.7, r"\bi(?: really| absolutely)? (?:hate|dislike|can['’]t stand)\b"),
    Cue(_TASTE, 0.7, r"\bi(?:['’]d| would)(?: much)? rather\b|\bmy preference is\b"),
    Cue(_TASTE, 0.6, r"\bmy favou?rite \w+(?: \w+)? (?:is|are)\b"),
    Cue(_TASTE, 0.6, r"\bi (?:do not|don['’]t) (?:like|eat|drink)\b"),
    # German, French, Spanish: the commonest of each.
    Cue(_DECISION, 0.9, r"\b(?:haben|habe) (?:\w+ ){0,4}(?:entschieden|beschlossen|vereinbart)\b"),
    Cue(_RULE, 0.8, r"^(?:bitte )?(?:immer|niemals|nie)\b|\bab jetzt\b|\bmerk(?:e)? dir\b"),
    Cue(_TASTE, 0.8, r"\bich (?:bevorzuge|mag|hasse|hätte lieber)\b|\bmir ist lieber\b"),
    Cue(_DECISION, 0.9, r"\b(?:avons|ai|a) (?:décidé|convenu|choisi)\b"),
    Cue(_RULE, 0.8, r"\b(?:désormais|dorénavant|souviens-toi|n['’]oublie(?:z)? pas)\b|^toujours\b"),
    Cue(_TASTE, 0.8, r"\bje (?:préfère|déteste|n['’]aime pas)\b"),
    Cue(_DECISION, 0.9, r"\b(?:hemos|he) (?:decidido|acordado|elegido)\b|\bdecidimos\b"),
    Cue(_RULE, 0.8, r"\b(?:de ahora en adelante|recuerda que|no olvides)\b|^(?:siempre|nunca)\b"),
    Cue(_TASTE, 0.8, r"\b(?:prefiero|odio|no me gusta)\b"),
    # Chinese and Japanese have no spaces, so no borders of words.
    Cue(
        _DECISION,
        0.9,
        r"(?:我们?|咱们)(?:已经)?(?:决定|決定|选择|說好|说好)|ことにし(?:た|ました)|に決め(?:た|ました)",
    ),
    Cue(
        _RULE,
        0.8,
        r"(?:请|請)?(?:记住|記住|务必|務必)|从现在起|以后都|今後は|覚えて(?:おいて|ください)|必ず",
    ),
    Cue(
        _TASTE,
        0.8,
        r"我(?:更|比较|不)?(?:喜欢|喜歡|讨厌)|の?(?:方|ほう)が(?:好き|いい)|が(?:好き|嫌い)(?:です|だ)",
    ),
)
"""The default cues of `Cues`."""

_LONG: Final = 2000
_LONG_WEIGHT: Final = 0.3
_ANSWER_WEIGHT: Final = 0.6
_EACH_MORE: Final = 0.05
_QUOTE: Final = 60

# Where the asking begins in "I prefer tea, can you find some?": the part before it is a statement.
_ASKING: Final = (
    r"(?:^|[,;:–-] ?|\b(?:so|and|but) )(?:can|could|would|will|should|shall|may|do|does|did|have"
    r"|has|is|are|am|was|were|what|how|why|which|when|where|who|any)(?:['’]\w+)? \w"
    r"|\bi(?:['’]m| am)? (?:wonder|wondering|curious|not sure)\b"
)
# Words before a cue that cancel it: "if we decided", "not sure I prefer".
_DOUBT: Final = r"\b(?:if|whether|unless|suppose|not sure|wonder(?:ing)?|wenn|falls|si|ob)\b[^,;]*$"


class Cues(NamedTuple):
    """Marks decisions, constraints and stated preferences by their wording; see `CUES`.

    Questions do not count; the user's word counts for more, and a long message for little.
    """

    table: Sequence[Cue] = CUES

    def score(self, message: Message) -> Importance | None:
        """Return a message's importance and the reason, or None if it has none."""
        if not _may_matter(message):
            return None
        answer = message.role == "assistant"
        found = self._found("\n".join(_statements(message.content)), answer)
        if not found:
            return None
        best, words = max(found, key=lambda pair: pair[0].weight)
        score = best.weight + _EACH_MORE * (len({cue.kind for cue, _ in found}) - 1)
        if answer:
            score *= _ANSWER_WEIGHT
        if len(message.content) > _LONG:
            score *= _LONG_WEIGHT
        return Importance(min(max(score, 0.0), 1.0), f"{best.kind}: “{words}”")

    def _found(self, said: str, answer: bool) -> list[tuple[Cue, str]]:
        """Return the cues that hold, each with its words."""
        pairs = ((cue, _words(cue, said)) for cue in self.table if cue.answers or not answer)
        return [(cue, words) for cue, words in pairs if words]


def _words(cue: Cue, said: str) -> str:
    """Return the first words that a cue finds in some sentences, one a line, and no doubt."""
    for found in re.finditer(cue.pattern, said, re.IGNORECASE | re.MULTILINE):
        before = said[said.rfind("\n", 0, found.start()) + 1 : found.start()]
        if not re.search(_DOUBT, before, re.IGNORECASE):
            return flat(found[0]).strip()[:_QUOTE]
    return ""


def _may_matter(message: Message) -> bool:
    """Return whether a person or the model speaks; text of tools or the web cannot be important."""
    return (
        message.state == "live"
        and message.role in ("user", "assistant")
        and message.origin not in ("tool", "web")
        and not message.tool_calls
    )


def _statements(text: str) -> Iterator[str]:
    """Yield what is said, not asked; of a long text, at its ends."""
    if len(text) > _LONG:
        text = f"{text[: _LONG // 2]}\n{text[-_LONG // 2 :]}"
    for sentence in sentences(text):
        said = sentence.strip().lstrip("-*>• ")
        if said.endswith(("?", "？")):
            asking = re.search(_ASKING, said, re.IGNORECASE)
            said = said[: asking.start()] if asking else ""
        if said:
            yield said
