"""Run what a Containerfile says without containers: its files and commands, below a folder."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_COMMENT: Final = re.compile(r"^#.*\n", re.MULTILINE)
_WORDS: Final = ("FROM", "COPY", "RUN", "WORKDIR", "ENV", "USER", "EXPOSE", "HEALTHCHECK")
KNOWN: Final = frozenset({*_WORDS, "ENTRYPOINT", "CMD"})


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return the instructions of a file: each its word, and the rest."""
    text = _COMMENT.sub("", path.read_text()).replace("\\\n", " ")
    return [
        (word, " ".join(rest.split()))
        for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())
    ]


def stages(path: Path) -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage."""
    found: list[list[tuple[str, str]]] = []
    for word, rest in instructions(path):
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest))
    return found


@dataclass
class Built:
    """What the last stage would be, below a folder."""

    folder: Path
    """It stands for `/`."""
    environment: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    _work: Path = ROOT

    def build(self, path: Path, inside: tuple[str, ...]) -> None:
        """Follow all instructions; `inside` are the paths of the image that they write to."""
        pattern = "|".join(re.escape(each) for each in sorted(inside, key=len, reverse=True))
        there = re.compile(rf"(?<![\w.])(?={pattern})")
        for word, text in instructions(path):
            assert word in KNOWN
            rest = there.sub(str(self.folder), text)
            if word == "FROM":
                self._begin()
            elif word == "WORKDIR":
                self._work = Path(rest)
                self._work.mkdir(parents=True, exist_ok=True)
            elif word == "COPY":
                self._copy(rest)
            elif word == "RUN":
                self._run(rest)
            elif word == "ENV":
                self._set(rest)
            elif word == "HEALTHCHECK":
                self.health = json.loads(rest.partition("CMD ")[2])
            elif word in ("ENTRYPOINT", "CMD"):
                self.command += json.loads(rest)

    def _begin(self) -> None:
        """Begin a stage: the base image is an environment with Python and pip."""
        base = self.folder / "base"
        venv.create(base, with_pip=True, clear=True)
        self.environment = {"PATH": f"{base}/bin:{os.environ['PATH']}", "HOME": str(self.folder)}
        for name in ("PIP_INDEX_URL", "PIP_CONFIG_FILE", "SSL_CERT_FILE", "HTTPS_PROXY"):
            if name in os.environ:
                self.environment[name] = os.environ[name]

    def _copy(self, rest: str) -> None:
        words = [word for word in shlex.split(rest) if not word.startswith("--")]
        source = Path("/") if "--from=" in rest else ROOT
        *given, target = words
        into = self._work / target
        for each in given:
            found = source / each
            if found == into:  # both stages are in one folder
                continue
            if found.is_dir():
                shutil.copytree(found, into, dirs_exist_ok=True, ignore=_CACHES, symlinks=True)
            else:
                into.mkdir(parents=True, exist_ok=True)
                shutil.copy(found, into)

    def _run(self, command: str) -> None:
        subprocess.run(["sh", "-ec", command], cwd=self._work, env=self.environment, check=True)

    def _set(self, rest: str) -> None:
        for pair in shlex.split(rest):
            name, _, value = pair.partition("=")
            self.environment[name] = value.replace("$PATH", self.environment["PATH"])


_CACHES: Final = shutil.ignore_patterns("__pycache__")


def is_reachable_by_others(path: Path) -> bool:
    """Return whether every folder above a path can be entered by any user."""
    return all(parent.stat().st_mode & 0o001 for parent in (path, *path.parents))


def python_is_reachable() -> bool:
    """Return whether another user can run this Python."""
    return is_reachable_by_others(Path(sys.executable).resolve().parent)
