"""The settings of the command: each with its kind, its default and its meaning, in one place."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

from keepthread.apps.cli.settings.discord import DiscordSettings
from keepthread.apps.cli.settings.fields import (
    COMMAND,
    FILE_ONLY,
    LINES,
    NAME,
    NAMES,
    NOT_NEGATIVE,
    PATH,
    POSITIVE,
    STORE,
    TEXT,
    TOOLS,
    TRUTH,
    VARIABLE,
    WEB,
    choice,
    default_path,
    optional,
    setting,
    whole,
    whole_or,
)
from keepthread.apps.cli.settings.server import MemoryProxySettings, ServerSettings
from keepthread.context.strategies import ALIASES, STRATEGIES
from keepthread.context.views import DEFAULT_VIEWS

KEY_VARIABLES: Final = MappingProxyType(
    {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
)
"""The providers, and where the key of each is looked for."""
_Noun = TypeVar("_Noun")


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """Which messages are kept, where, and how many of them a model sees."""

    enabled: bool = setting(
        True,
        TRUTH,
        "Whether conversations are stored; if not, a chat is lost when its program ends.",
    )
    storage_path: str | None = setting(
        None,
        optional(PATH),
        "The file that stores conversations; a relative path in a settings file is relative to "
        "that file.",
        project=False,
        stands_for="`memory.db` in the platform's data folder",
    )
    url: str | None = setting(
        None,
        optional(STORE),
        "The URL of the store, instead of a path: `postgresql://…`, `redis://…`.",
        project=False,
        flag="--store",
        variable="KEEPTHREAD_STORE",
    )
    tenant: str = setting(
        "default",
        NAME,
        "The tenant inside the store.",
        project=False,  # a cloned repository must not choose whose memory is read
        flag="--tenant",
    )
    owner: str = setting(
        "default", NAME, "The owner of chats, facts and named sessions.", project=False
    )
    max_history_tokens: int | str = setting(
        4096,
        whole_or("auto", 1),
        "Maximum tokens of history shown in addition to your newest message: the budget of the "
        "view `chat`. `auto` is a quarter of `model.context_window`.",
    )
    strategy: str = setting(
        "hybrid",
        choice(*STRATEGIES, aliases=ALIASES),
        "The strategy of the view `chat`.",
    )
    recall: str = setting(
        "session",
        choice("session", "owner"),
        "Which messages may be recalled: the session's, or all of the owner's.",
        project=False,  # another project's file must not open other conversations
    )
    tools: bool = setting(
        True,
        TRUTH,
        "Whether the model may use the tools `remember` and `search_memory`.",
        project=False,  # what is noted is known in every project
    )
    auto_prune_days: int | None = setting(
        None,
        optional(whole(1)),
        "Delete conversations after N days without activity, once a day while chats or bots run.",
        project=False,
        stands_for="never",
    )
    keep_why: int = setting(
        20, whole(0), "How many explanations of contexts each session keeps, for `/why`."
    )

    @property
    def path(self) -> Path:
        """Return the file that serves if no address is given."""
        return default_path() if self.storage_path is None else Path(self.storage_path).expanduser()


@dataclass(frozen=True, kw_only=True)
class Price:
    """Prices of a million tokens; None if unknown."""

    input: float | None = setting(None, optional(NOT_NEGATIVE), "Price of a million input tokens.")
    cached: float | None = setting(
        None,
        optional(NOT_NEGATIVE),
        "Price of a million input tokens that the provider had cached.",
        stands_for="as `input`",
    )
    output: float | None = setting(
        None, optional(NOT_NEGATIVE), "Price of a million output tokens."
    )


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Which model answers, and how it is reached."""

    provider: str = setting(
        "openai",
        choice(*KEY_VARIABLES),
        "The API of the service.",
        project=False,  # it also chooses which key is sent to base_url
    )
    name: str | None = setting(
        None, optional(NAME), "The model, as its service names it.", flag="--model"
    )
    base_url: str | None = setting(
        None,
        optional(WEB),
        "The base URL of the service, if it is not the provider's own.",
        project=False,
        stands_for="the provider's own",
    )
    key_env: str | None = setting(
        None,
        optional(VARIABLE),
        "The environment variable that holds the key; the key itself is never in a file.",
        project=False,
        stands_for="`OPENAI_API_KEY` or `ANTHROPIC_API_KEY`",
    )
    key_command: str | None = setting(
        None,
        optional(COMMAND),
        "A command that prints the key, such as `op read op://Private/OpenAI/key`.",
        project=False,  # it runs a program
        variable=FILE_ONLY,
    )
    max_tokens: int | None = setting(
        None,
        optional(whole(1)),
        "Maximum tokens of an answer.",
        stands_for="the service's own limit",
    )
    context_window: int | None = setting(
        None,
        optional(whole(1024)),
        "The model's context window in tokens, prompt and answer together.",
        stands_for="as reported by the service, as known for the model, or 32768",
    )
    timeout: float = setting(60.0, POSITIVE, "Timeout for the service in seconds.")
    max_seconds: float = setting(
        1800.0, POSITIVE, "Timeout for a whole answer in seconds, even if it keeps arriving."
    )
    retries: int = setting(
        2, whole(0, 10), "Number of retries for requests that are safe to repeat."
    )
    price: Price = field(default_factory=Price)

    @property
    def key_variable(self) -> str:
        """Return the name of the variable that holds the key."""
        return self.key_env or KEY_VARIABLES[self.provider]


@dataclass(frozen=True, kw_only=True)
class SummarizerSettings:
    """Who shortens what is old."""

    by: str = setting(
        "extractive",
        choice("extractive", "model"),
        "How texts are shortened: `extractive` drops sentences, `model` asks a model.",
    )
    name: str | None = setting(
        None,
        optional(NAME),
        "The model that summarizes, from the same service as the chat's.",
        stands_for="the chat's",
    )


@dataclass(frozen=True, kw_only=True)
class CompactionSettings:
    """When old turns become a summary, and its size; sizes are bytes of UTF-8."""

    turns: int = setting(
        10, whole(1), "How many closed turns are kept before the oldest are compacted."
    )
    batch_size: int = setting(5, whole(1), "How many turns are compacted at a time.")
    answer_bytes: int = setting(750, whole(1), "Longer answers are shown and compacted as digests.")
    digest_bytes: int = setting(500, whole(1), "The approximate length of an answer's digest.")
    summary_bytes: int = setting(4000, whole(1), "A longer summary is compressed.")
    compressed_bytes: int = setting(3000, whole(1), "The maximum length of a compressed summary.")


@dataclass(frozen=True, kw_only=True)
class EmbedderSettings:
    """Semantic search; without a folder or an address, search matches words only."""

    folder: str | None = setting(
        None,
        optional(PATH),
        "The folder of a sentence-embedding model in ONNX format.",
        project=False,
    )
    url: str | None = setting(
        None,
        optional(WEB),
        "The URL of an OpenAI-compatible embedding service, instead of a folder.",
        project=False,
    )
    name: str | None = setting(None, optional(NAME), "The model at that address.", project=False)
    key_env: str | None = setting(
        None,
        optional(VARIABLE),
        "The environment variable that holds the key for that address.",
        project=False,
        stands_for="none, and no key is sent",
    )


@dataclass(frozen=True, kw_only=True)
class ChatSettings:
    """How a chat in the terminal begins and looks."""

    system: str | None = setting(
        None,
        optional(TEXT),
        "The system prompt of new sessions.",
        project=False,
        flag="--system",
    )
    markdown: bool = setting(True, TRUTH, "Whether answers are drawn as Markdown.")
    orchestrate: bool = setting(
        False,
        TRUTH,
        "Whether requests are routed, planned and carried out in steps, with the tools of your"
        " `mcp.json`.",
        project=False,  # it starts programs
        flag="--orchestrate",
    )
    allowed_tools: str | None = setting(
        None,
        optional(TOOLS),
        "Tools with side effects that run without asking, as `SERVER/TOOL`; answering `always` "
        "adds to them; `-p` and pipes run only these.",
        project=False,
    )


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    """A budget and who chooses within it, by a name of your own."""

    tokens: int = setting(MISSING, whole(1), "Its budget: the maximum tokens of a context.")
    strategy: str = setting(
        "window", choice(*STRATEGIES, aliases=ALIASES), "The strategy that chooses what it shows."
    )
    max_messages: int | None = setting(
        None,
        optional(whole(1)),
        "The maximum number of messages it shows.",
        stands_for="all that fit",
    )
    tool_calls: str = setting(
        "recent",
        choice("all", "recent", "none"),
        "Which tool calls it shows: all, those of earlier turns in a line each, or none.",
    )


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """A specialist by a name of your own, to which the planner can give steps."""

    description: str = setting(
        MISSING, TEXT, "Its purpose; the planner uses it to choose an agent.", project=False
    )
    system: str | None = setting(None, optional(TEXT), "Its system prompt.", project=False)
    system_file: str | None = setting(
        None, optional(PATH), "A file with its system prompt, instead of `system`.", project=False
    )
    model: str | None = setting(
        None,
        optional(NAME),
        "Its model, from the same service as the chat's.",
        project=False,
        stands_for="the chat's",
    )
    tools: tuple[str, ...] = setting(
        (),
        NAMES,
        "The only tools it may use.",
        project=False,
        stands_for="the tools the planner assigns to its step",
    )
    facts: bool = setting(
        False, TRUTH, "Whether it sees the facts about the user, as the chat does.", project=False
    )
    shared_facts: tuple[str, ...] = setting(
        (), LINES, "Facts it knows for every user.", project=False, stands_for="nothing"
    )


def _views() -> dict[str, ViewSettings]:
    others = {name: view for name, view in DEFAULT_VIEWS.items() if name != "chat"}
    return {
        name: ViewSettings(tokens=view.budget, tool_calls="none") for name, view in others.items()
    }


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings; what is not given has its default."""

    tokenizer: str = setting(
        "o200k",
        choice("o200k", "cl100k"),
        "The vocabulary used to count tokens: that of OpenAI's newer models, or of older ones.",
    )
    memory: MemorySettings = field(default_factory=MemorySettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    summarizer: SummarizerSettings = field(default_factory=SummarizerSettings)
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    embedder: EmbedderSettings = field(default_factory=EmbedderSettings)
    chat: ChatSettings = field(default_factory=ChatSettings)
    discord: DiscordSettings = field(default_factory=DiscordSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    proxy: MemoryProxySettings = field(default_factory=MemoryProxySettings)
    views: Mapping[str, ViewSettings] = field(default_factory=_views)
    agents: Mapping[str, AgentSettings] = field(default_factory=dict[str, AgentSettings])

    @property
    def address(self) -> str:
        """Return the address of the store."""
        return self.memory.url or f"sqlite:///{self.memory.path}"

    def values(self) -> dict[str, Any]:
        """Return every value by its dotted key."""
        found: dict[str, Any] = {}
        for key in KEYS:
            value: Any = self
            for part in key.split("."):
                value = getattr(value, part)
            found[key] = value
        for block, keys in NAMED.items():
            for name, given in getattr(self, block).items():
                found |= {f"{block}.{name}.{each}": getattr(given, each) for each in keys}
        return found


def _sections(kind: type[Any]) -> Iterator[tuple[str, type[Any]]]:
    """Yield the blocks inside a block."""
    for each in fields(kind):
        if is_dataclass(each.default_factory):
            yield each.name, cast(type[Any], each.default_factory)


def _walk(kind: type[Any], prefix: str = "") -> Iterator[tuple[str, Field[Any]]]:
    for each in fields(kind):
        if each.metadata:
            yield f"{prefix}{each.name}", each
    for name, inner in _sections(kind):
        yield from _walk(inner, f"{prefix}{name}.")


KEYS: Final[Mapping[str, Field[Any]]] = MappingProxyType(dict(_walk(Settings)))
"""Every setting but those of views and agents, by its dotted key."""
NAMED: Final[Mapping[str, Mapping[str, Field[Any]]]] = MappingProxyType(
    {"views": dict(_walk(ViewSettings)), "agents": dict(_walk(AgentSettings))}
)
"""The blocks of settings that have names of your own inside, as in `views.NAME.tokens`."""


def variable_of(key: str) -> str:
    """Return the environment variable that sets a key."""
    named = KEYS[key].metadata["variable"] if key in KEYS else ""
    return named or f"KEEPTHREAD_{key.replace('.', '_').upper()}"


def settings_of(values: Mapping[str, Any]) -> Settings:
    """Return the settings of values by their dotted keys."""
    views = {name: dict(vars(view)) for name, view in _views().items()}
    given: dict[str, dict[str, dict[str, Any]]] = {"views": views, "agents": {}}
    for key, value in values.items():
        block, _, rest = key.partition(".")
        if block in NAMED:
            name, _, part = rest.rpartition(".")
            given[block].setdefault(name, {})[part] = value
    return replace(
        _built(Settings, values),
        views={name: ViewSettings(**each) for name, each in views.items()},
        agents={name: AgentSettings(**each) for name, each in given["agents"].items()},
    )


def _built(kind: type[_Noun], values: Mapping[str, Any], prefix: str = "") -> _Noun:
    given: dict[str, Any] = {}
    for name, inner in _sections(kind):
        given[name] = _built(inner, values, f"{prefix}{name}.")
    for each in fields(cast(Any, kind)):
        if f"{prefix}{each.name}" in values:
            given[each.name] = values[f"{prefix}{each.name}"]
    return kind(**given)
