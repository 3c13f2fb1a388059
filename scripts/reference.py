"""Write into the reference what the program says of itself: commands, settings, public types.

A page has places for it, between `<!-- begin: NAME -->` and `<!-- end: NAME -->`. The text around
them is written by hand and stays. `schemas.json` and `openapi.json` are written whole. With --check
nothing is written; the exit status is 1 if a page says something else than the program.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field
from inspect import cleandoc, getdoc
from pathlib import Path
from typing import Any, cast

from typer.main import get_command

from keepthread.apps.cli.app import app, usage_of
from keepthread.apps.cli.chat.commands import COMMANDS
from keepthread.apps.cli.settings.fields import FILE_ONLY, ValueKind
from keepthread.apps.cli.settings.settings import KEYS, NAMED, Settings, variable_of
from keepthread.apps.http.app import create_app as http_document
from keepthread.apps.http.operations import OWN
from keepthread.interchange.json_types import all_schemas
from scripts import api_reference

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
BLOCK = re.compile(r"^<!-- begin: (.+) -->\n(.*?)^<!-- end: \1 -->\n", re.MULTILINE | re.DOTALL)
COMMON = ("store", "tenant", "json", "no_pager", "help")
"""Options of every command, which are told once."""
BOUNDS = ((r"x>=(\d+)", r"at least \1"), (r"(\d+)<=x<=(\d+)", r"\1 to \2"))


# --- commands and their options ---


def commands() -> dict[str, str]:
    """Return what is said of the program, of each of its commands and of their actions."""
    program: Any = get_command(app)
    around = program.context_class(program, info_name="keepthread", **program.context_settings)
    blocks = {"keepthread": _told("keepthread", program.help, program.get_params(around), around)}
    for name, command in program.commands.items():
        path, actions = f"keepthread {name}", getattr(command, "commands", {})
        if actions:
            rows = [
                (f"`{each}`", action.help.partition("\n")[0]) for each, action in actions.items()
            ]
            parts = [
                f"## `{path} [ACTION]`\n\n{cleandoc(command.help)}",
                _table(("action", "what it does"), rows),
                *(
                    _told_of(f"{path} {each}", action, around, level=3)
                    for each, action in actions.items()
                ),
            ]
            blocks[path] = "\n\n".join(parts)
        else:
            blocks[path] = _told_of(path, command, around)
    return blocks


def _told_of(path: str, command: Any, around: Any, *, level: int = 2) -> str:
    inside = command.context_class(
        command, info_name=path, parent=around, **command.context_settings
    )
    own = [each for each in command.get_params(inside) if each.name not in COMMON]
    usage = [path, *filter(None, map(usage_of, own))]
    return _told(" ".join(usage), command.help, own, inside, level=level)


def _told(
    usage: str, about: str, parameters: Sequence[Any], context: Any, *, level: int = 2
) -> str:
    arguments = [each for each in parameters if _is_argument(each)]
    options = [each for each in parameters if not _is_argument(each)]
    parts = [f"{'#' * level} `{usage}`", cleandoc(about)]
    if arguments:
        rows = [(f"`{_name(each)}`", _meaning(each, context)) for each in arguments]
        parts.append(_table(("argument", "meaning"), rows))
    if options:
        rows = [(_spelled(each, context), _meaning(each, context)) for each in options]
        parts.append(_table(("option", "meaning"), rows))
    return "\n\n".join(parts)


def _is_argument(parameter: Any) -> bool:
    return parameter.param_type_name == "argument"


def _name(argument: Any) -> str:
    return argument.metavar or argument.name.upper()


def _spelled(option: Any, context: Any) -> str:
    """Return an option's names, the last with what it takes, each as code."""
    names = option.get_help_record(context)[0]
    return ", ".join(f"`{name}`" for name in names.split(", "))


def _meaning(parameter: Any, context: Any) -> str:
    """Return what the help says, and behind it what holds of the value."""
    said = parameter.get_help_record(context)[1]
    text, _, holds = said.partition("  [")
    told = [_holding(each) for each in holds.removesuffix("]").split("; ")]
    told = [each for each in told if each and not (each == "required" and _is_argument(parameter))]
    return f"{text} ({'; '.join(told)})" if told else text


def _holding(said: str) -> str:
    for bound, words in BOUNDS:
        said = re.sub(bound, words, said)
    return re.sub(r"default: (.*)", r"default: `\1`", said)


# --- what can be asked of a chat ---


def slash_commands() -> dict[str, str]:
    """Return what is said of the commands inside a chat."""
    names: dict[str, list[str]] = {}
    for name, command in COMMANDS.items():
        said = " ".join((getdoc(command.run) or "").split())
        names.setdefault(said, []).append(f"`{' '.join(filter(None, (name, command.usage)))}`")
    rows = [(", ".join(written), said) for said, written in names.items()]
    return {"commands": _table(("command", "what it does"), rows)}


# --- settings ---


def settings() -> dict[str, str]:
    """Return what is said of each setting, by the block that holds it."""
    blocks: dict[str, list[Sequence[str]]] = {}
    for key, field in KEYS.items():
        blocks.setdefault(key.partition(".")[0], []).append(_row(key, variable_of(key), field))
    for block, keys in NAMED.items():
        blocks[block] = [
            _row(f"{block}.NAME.{key}", f"KEEPTHREAD_{block}_NAME_{key}".upper(), field)
            for key, field in keys.items()
        ]
    head = ("setting, variable", "value", "default", "by a project", "meaning")
    tables = {name: _table(head, rows) for name, rows in blocks.items()}
    views = [
        (f"`{name}`", f"{view.tokens:,}", f"`{view.strategy}`")
        for name, view in Settings().views.items()
    ]
    return {**tables, "known views": _table(("view", "tokens", "strategy"), views)}


def _row(key: str, variable: str, field: Field[Any]) -> Sequence[str]:
    known = field.metadata
    flag = f" Flag: `{known['flag']}`." if known["flag"] else ""
    return (
        f"`{key}`<br>{'no variable' if variable == FILE_ONLY else f'`{variable}`'}",
        _expected(known["kind"]),
        _default(field),
        "yes" if known["project"] else "no",
        f"{known['meaning']}{flag}",
    )


def _expected(kind: ValueKind) -> str:
    words = kind.expected.partition(";")[0].removesuffix(", or null for none")
    return f"{words}, or `null`" if kind.optional else words


def _default(field: Field[Any]) -> str:
    if field.default is MISSING:
        return "must be given"
    if field.default in (None, ()):
        return field.metadata["stands_for"] or "none"
    return f"`{str(field.default).lower()}`"


# --- types ---


def public_types() -> dict[str, str]:
    """Return the fields of every public type."""
    described: dict[str, Any] = all_schemas()["$defs"]
    parts: list[str] = []
    for name, schema in described.items():
        rows = [
            (f"`{field}`", _kind(each), each.get("description", ""))
            for field, each in schema["properties"].items()
        ]
        parts.append(f"## {name}\n\n{schema['description']}")
        parts.append(_table(("field", "JSON", "meaning"), rows))
    return {"types": "\n\n".join(parts)}


def _kind(schema: Mapping[str, Any]) -> str:
    """Return a schema in words."""
    if ref := schema.get("$ref"):
        name = ref.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if options := schema.get("enum"):
        return " or ".join(f"`{each}`" for each in options)
    if options := schema.get("anyOf"):
        return " or ".join(map(_kind, options))
    if rows := schema.get("prefixItems"):
        return f"[{', '.join(map(_kind, rows))}]"
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    if schema.get("type") == "object":
        return f"object of {_kind(schema['additionalProperties'])}"
    if "pattern" in schema:
        return "hexadecimal string"
    return schema.get("type", "any JSON")


def schemas() -> str:
    """Return the JSON Schemas of all public types as a file."""
    return json.dumps(all_schemas(), indent=2, ensure_ascii=False) + "\n"


# --- the HTTP server ---


def http_operations() -> dict[str, str]:
    """Return the operations of the HTTP server by resource, and the codes of its own errors."""
    document = openapi()
    parts: dict[str, list[Sequence[str]]] = {}
    for path, item in document["paths"].items():
        for method, each in item.items():
            if "x-scope" in each:
                row = (f"`{method.upper()} {path}`", f"`{each['x-scope']}`", each["summary"])
                parts.setdefault(each["tags"][0], []).append(row)
    tables = [
        f"### {name.capitalize()}\n\n{_table(('request', 'scope', 'what it does'), rows)}"
        for name, rows in parts.items()
    ]
    codes = [(f"`{code}`", str(status), text) for code, (status, text) in OWN.items()]
    return {
        "operations": "\n\n".join(tables),
        "codes": _table(("code", "status", "meaning"), codes),
    }


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of the HTTP server; it does not depend on a store."""
    return http_document(cast(Any, None), cast(Any, None)).openapi()


def openapi_file() -> str:
    """Return the OpenAPI document as a file."""
    return json.dumps(openapi(), indent=1, ensure_ascii=False) + "\n"


# --- pages ---

PAGES: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "command.md": commands,
    "chat.md": slash_commands,
    "settings.md": settings,
    "types.md": public_types,
    "http.md": http_operations,
}
FILES: Mapping[str, Callable[[], str]] = {
    "schemas.json": schemas,
    "openapi.json": openapi_file,
    **api_reference.FILES,
}


def renewed(name: str, page: str) -> str:
    """Return a page as the program would have it; what is written by hand stays."""
    said, places = PAGES[name](), [found[1] for found in BLOCK.finditer(page)]
    if sorted(places) != sorted(said):
        differ = ", ".join(sorted({*places} ^ {*said})) or "one that is there twice"
        raise SystemExit(
            f"{name}: the program and the places in the page differ in {differ}; write"
            " <!-- begin: NAME --> and <!-- end: NAME --> on lines of their own"
        )

    def block(found: re.Match[str]) -> str:
        place = found[1]
        return f"<!-- begin: {place} -->\n\n{said[place]}\n\n<!-- end: {place} -->\n"

    return BLOCK.sub(block, page)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


def main(arguments: Sequence[str], folder: Path = FOLDER) -> int:
    """Write the pages, or with --check tell which are not as the program says."""
    if arguments not in ([], ["--check"]):
        print("usage: scripts/reference [--check]", file=sys.stderr)
        return 2
    stale = 0
    for name in (*PAGES, *FILES):
        path = folder / name
        page = path.read_text() if path.exists() or name in PAGES else ""
        if (new := FILES[name]() if name in FILES else renewed(name, page)) == page:
            continue
        stale += 1
        if arguments:
            print(f"{name} is stale: run scripts/reference", file=sys.stderr)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(new)
            print(f"{name} was written anew")
    return 1 if arguments and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
