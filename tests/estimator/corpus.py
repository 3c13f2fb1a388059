"""Gather the held-out messages of six kinds on which the token estimator is judged."""

import ast
import base64
import json
import pickle
import random
import struct
import sysconfig
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data import topics
from typing import Any

TEXTS = Path(__file__).parent / "texts"
LIBRARY = Path(sysconfig.get_path("stdlib"))
PACKAGES = "asyncio concurrent email http importlib json logging sqlite3 unittest urllib xml"


def messages() -> dict[str, list[str]]:
    """Return at least 200 messages of each kind, the same on every run."""
    return {
        "english": [
            *committed("english", 90, 3000),
            *pick(reference(), 90),
            *pick(docstrings(), 70),
        ],
        "chinese": committed("chinese", 25, 900),
        "thai": committed("thai", 40, 1200),
        "code": [*committed("code", 80, 2500), *pick(library_code(), 150)],
        "json": generated(json_message, 250),
        "base64": generated(base64_message, 250),
    }


def committed(kind: str, low: int, high: int) -> list[str]:
    """Return the messages of the committed texts of a kind."""
    found: list[str] = []
    for path in sorted(TEXTS.glob(f"{kind}-*.txt")):
        for document in path.read_text("utf-8").split("\n%%\n"):
            found.extend(cut(document, low, high, random.Random(path.name)))
    return found


def cut(document: str, low: int, high: int, dice: random.Random) -> Iterator[str]:
    """Yield consecutive messages of whole lines; small sizes come as often as large ones."""
    message, size = "", low
    for line in document.splitlines(keepends=True):
        message += line
        if len(message) >= size:
            yield message.strip("\n")
            message, size = "", low * (high / low) ** dice.random()
    if len(message) >= low:
        yield message.strip("\n")


def pick(found: Iterator[str], number: int) -> list[str]:
    """Return some of the messages, spread over all of them by chance."""
    return random.Random(1).sample(list(found), number)


def library_sources() -> Iterator[str]:
    """Yield the source of each module of some packages of the standard library."""
    for package in PACKAGES.split():
        for path in sorted(LIBRARY.joinpath(package).glob("*.py")):
            yield path.read_text("utf-8")


def reference() -> Iterator[str]:
    """Yield messages from the language reference, as the help within Python gives it."""
    dice = random.Random(2)
    for text in topics.topics.values():
        yield from cut(text, 90, 5000, dice)


def docstrings() -> Iterator[str]:
    """Yield messages from the docstrings of the standard library."""
    dice = random.Random(4)
    for source in library_sources():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield from cut(ast.get_docstring(node) or "", 90, 5000, dice)


def library_code() -> Iterator[str]:
    """Yield messages from the source of the standard library."""
    dice = random.Random(3)
    for source in library_sources():
        yield from cut(source, 80, 5000, dice)


def generated(message: Callable[[random.Random], str], number: int) -> list[str]:
    """Return messages made by chance, from one seed each."""
    return [message(random.Random(seed)) for seed in range(1000, 1000 + number)]


def locomo(path: Path) -> list[str]:
    """Return messages of several turns each from the conversations of LoCoMo."""
    found: list[str] = []
    for sample in json.loads(path.read_text("utf-8")):
        sessions: dict[str, Any] = sample["conversation"]
        for name in sessions:
            if f"{name}_date_time" in sessions:
                talk = "\n".join(f"{turn['speaker']}: {turn['text']}" for turn in sessions[name])
                found.extend(cut(talk, 60, 4000, random.Random(name)))
    return found


WORDS = TEXTS.joinpath("english-udhr.txt").read_text("utf-8").split()


def sentence(dice: random.Random, longest: int = 20) -> str:
    """Return consecutive words of the Universal Declaration of Human Rights."""
    start = dice.randrange(len(WORDS) - longest)
    return " ".join(WORDS[start : start + dice.randint(2, longest)])


def moment(dice: random.Random) -> str:
    """Return a time of day on some day, as services write it."""
    day = f"{dice.randint(1999, 2031)}-{dice.randint(1, 12):02}-{dice.randint(1, 28):02}"
    return (
        f"{day}T{dice.randrange(24):02}:{dice.randrange(60):02}:{dice.uniform(0, 59):06.3f}+00:00"
    )


def identifier(dice: random.Random) -> str:
    """Return a random UUID."""
    return str(uuid.UUID(int=dice.getrandbits(128), version=4))


def tool_call(dice: random.Random) -> dict[str, Any]:
    """Return a call of a tool as a chat service sends it, arguments as JSON within JSON."""
    arguments = {
        "query": sentence(dice, 8),
        "limit": dice.randint(1, 100),
        "since": moment(dice),
        "path": f"/srv/{dice.choice(['reports', 'uploads', 'tmp'])}/{dice.randrange(10**6)}.csv",
        "include_archived": dice.random() < 0.5,
    }
    function = {"name": "search_documents", "arguments": json.dumps(arguments)}
    return {"id": f"call_{dice.randbytes(12).hex()}", "type": "function", "function": function}


def order(dice: random.Random) -> dict[str, Any]:
    """Return an order as a shop's service answers."""
    return {
        "orderId": identifier(dice),
        "createdAt": moment(dice),
        "customer": {
            "email": f"user{dice.randrange(10**4)}@example.org",
            "phone": f"+1-202-555-{dice.randrange(10**4):04}",
        },
        "items": [
            {"sku": f"SKU-{dice.randrange(10**6):06}", "quantity": dice.randint(1, 9)}
            | {"unitPrice": round(dice.uniform(1, 900), 2), "taxRate": 0.19}
            for _ in range(dice.randint(1, 12))
        ],
        "trackingUrl": f"https://track.example.com/p/{dice.randbytes(8).hex()}?lang=en&v=2",
        "notes": dice.choice([None, sentence(dice)]),
    }


def places(dice: random.Random) -> dict[str, Any]:
    """Return a map layer of points."""
    points = [
        {
            "type": "Feature",
            "geometry": {
                "type": "Point",
                "coordinates": [dice.uniform(-180, 180), round(dice.uniform(-90, 90), 5)],
            },
            "properties": {"name": sentence(dice, 3).title(), "population": dice.randrange(10**7)},
        }
        for _ in range(dice.randint(1, 12))
    ]
    return {"type": "FeatureCollection", "features": points}


def log_lines(dice: random.Random) -> list[dict[str, Any]]:
    """Return entries of a service's log."""
    return [
        {
            "ts": dice.uniform(1.5e9, 1.9e9),
            "level": dice.choice(["INFO", "WARNING", "ERROR"]),
            "trace_id": dice.randbytes(16).hex(),
            "msg": sentence(dice),
            "remote_addr": ".".join(str(dice.randrange(256)) for _ in range(4)),
            "duration_ms": round(dice.expovariate(0.01), 3),
        }
        for _ in range(dice.randint(1, 10))
    ]


def chat(dice: random.Random) -> dict[str, Any]:
    """Return a chat, as it is sent to a model."""
    roles = ["user", "assistant"] * dice.randint(1, 6)
    turns = [{"role": role, "content": sentence(dice, 60)} for role in roles]
    return {"model": "some-model-v3", "temperature": 0.7, "max_tokens": 1024, "messages": turns}


def numbers(dice: random.Random) -> dict[str, Any]:
    """Return a vector, as an embedding service answers."""
    vector = [dice.gauss(0, 0.05) for _ in range(dice.randint(3, 90))]
    return {"object": "embedding", "index": dice.randrange(9), "embedding": vector}


def json_message(dice: random.Random) -> str:
    """Return a document in one of several styles and layouts."""
    document = dice.choice([tool_call, order, places, log_lines, chat, numbers])(dice)
    indent = dice.choice([None, None, 2, 4])
    separators = dice.choice([None, (",", ":")]) if indent is None else None
    return json.dumps(document, indent=indent, separators=separators)


def image(dice: random.Random) -> bytes:
    """Return a small picture in the format PNG: a colour gradient with some noise."""
    width, height = dice.randint(4, 24), dice.randint(2, 12)
    rows = b"".join(
        b"\0" + bytes((x * 9 + y * 5 + dice.randrange(40)) % 256 for x in range(3 * width))
        for y in range(height)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def base64_message(dice: random.Random) -> str:
    """Return bytes of several origins in one of the forms that base64 comes in."""
    size = int(24 * 60 ** dice.random())
    prose = sentence(dice, 300).encode()[:size]
    record = pickle.dumps(order(dice), protocol=4)[:size]
    origins = [dice.randbytes(size), image(dice), prose, zlib.compress(prose), record]
    data = dice.choice([origins[0], *origins])
    text = base64.b64encode(data).decode()
    lines = base64.encodebytes(data).decode()
    token = base64.urlsafe_b64encode(data).decode().rstrip("=")
    forms = [
        text,
        lines,
        f"data:application/octet-stream;base64,{text}",
        token,
        f"-----BEGIN CERTIFICATE-----\n{lines}-----END CERTIFICATE-----",
    ]
    return dice.choice(forms)
