"""A model that summarises and extracts, and does what a text tells it that holds a trigger."""

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from keepthread import Message
from keepthread.types import JSON, Reply, Tool
from proofs import gullible
from proofs.attacks import Attack


class Persuaded:
    """Answers with the attack that a text holds, or its trigger; else with the text, cut.

    What it is given is read by the gullible reader, too: no order may stand outside the delimiter.
    """

    name = "persuaded"

    def __init__(self) -> None:
        self.summaries: dict[str, Attack] = {}
        self.facts: dict[str, Attack] = {}
        """What each says of a text that holds a word."""
        self.prompts = 0
        self.steered: list[str] = []

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        system: str = "",
        tools: Sequence[Tool] = (),
        schema: Mapping[str, JSON] | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        (asked,) = messages
        self.prompts += 1
        triggers = self.summaries if schema is None else self.facts
        found = [each for trigger, each in triggers.items() if trigger in asked.content]
        self._read(asked.content, system, found)
        if schema is not None:
            return Reply(content=json.dumps({"facts": self._facts(asked.content)}))
        limit = int(re.findall(r"at most (\d+) bytes", system)[0])
        text = found[0].brief if found else asked.content[: limit // 8]
        return Reply(content=text)

    async def stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[str | Reply]:
        yield await self.complete(*args, **kwargs)

    def _read(self, prompt: str, system: str, found: Sequence[Attack]) -> None:
        delimiter = re.findall(r"delimiter (\w+)", system)[0]
        for attack in found:
            said = [gullible.Said("user", prompt), gullible.Said("system", system)]
            if how := gullible.steered(said, delimiter, attack.codeword):
                self.steered.append(f"a model that was to shorten or extract: {how}"[:600])

    def _facts(self, prompt: str) -> list[dict[str, Any]]:
        """Propose the attack as a fact, of each message that speaks of it."""
        blocks = re.findall(r"(?ms)^\[message (\d+),(.*?)^\[end of quote", prompt)
        return [
            {
                "source": int(number),
                "subject": "user",
                "attribute": "rule",
                "value": attack.codeword,
                "many": True,
                "ended": False,
                "text": attack.brief.replace("\0", ""),
            }
            for number, text in blocks
            for trigger, attack in self.facts.items()
            if trigger in text
        ]
