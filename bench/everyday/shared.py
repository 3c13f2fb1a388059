"""Write which stems each question has in common with its answer, by the analyzer of the search.

    python -m bench.everyday.shared FOLDER

Run it after changing the second half; the figures of both halves are by the analyzer of their time.
"""

import json
import sys
from pathlib import Path

from bench.everyday.halves import read_rows
from keepthread.recall.words import query_words, words_of


def write_shared(folder: Path) -> None:
    """Write the questions of a half again, with `shared`."""
    texts = {each["id"]: each["text"] for each in read_rows(folder / "statements.jsonl")}
    file = folder / "questions.jsonl"
    lines: list[str] = []
    for question in read_rows(file):
        answer = words_of(texts[question["answers"][0]])
        shared = sorted(set(query_words(question["text"])).intersection(answer))
        lines.append(json.dumps({**question, "shared": shared}, ensure_ascii=False) + "\n")
    file.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    write_shared(Path(sys.argv[1]))
