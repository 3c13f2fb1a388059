"""Rebuild the prompt of an earlier context from its explanation, and say what changed since."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from keepthread.context.blocks import Block, no_result
from keepthread.context.context import Context, text_counter
from keepthread.context.facts import facts_quotation
from keepthread.context.prompt_digests import (
    digest_of,
    digest_of_prompt,
    digest_of_system,
    short_form,
)
from keepthread.context.ranges import merged
from keepthread.context.recall import recalled_quotation
from keepthread.context.summary import summary_quotation
from keepthread.context.tool_results import as_lines, call_of
from keepthread.context.truncate import cut_again
from keepthread.context.window import CONTEXT_FRAME
from keepthread.errors import InvalidInput
from keepthread.memory.conversation import Conversation
from keepthread.memory.material import standing_alone
from keepthread.memory.rebuild_sources import RebuildSources, SourceReader
from keepthread.memory.tool_calls import tool_request
from keepthread.memory.why_log import Explanation
from keepthread.protocols import KnownFact, Recollection, TokenCounter
from keepthread.recall.chunks import pieces_of
from keepthread.references import Reference, References
from keepthread.stores.validation import show
from keepthread.types import Message, Selection, SessionKey

ChangeReason: TypeAlias = Literal["erased", "deleted", "changed", "hidden", "recounted", "unknown"]
"""`erased`: forgotten. `deleted`: no longer stored. `changed`: it has another text now. `hidden`:
contexts skip it now; the prompt is the same. `recounted`: another counter counts tokens now; the
prompt is the same. `unknown`: nothing is known that it could be rebuilt from, or compared with."""
ChangedThing: TypeAlias = Literal["message", "fact", "summary", "system", "counter", "prompt"]


class PromptChange(NamedTuple):
    """Something that a prompt was made of and that is not as it was."""

    reason: ChangeReason
    what: ChangedThing
    first: int = 0
    """The first position; of a summary, the last one it covers."""
    last: int = 0
    session: str = ""
    """The id of the session of the positions; empty for the session itself."""
    key: str = ""
    """The key of a fact."""


class Rebuilt(NamedTuple):
    """The prompt of an earlier context, as far as it can be rebuilt."""

    matches: bool
    """Whether it is exactly the prompt that was shown."""
    context: Context | None
    """The context with that prompt; None if it does not match."""
    messages: Sequence[Message]
    """The messages that could be rebuilt, in the order of the prompt."""
    changes: Sequence[PromptChange]
    """The changes since: a prompt may match although something is hidden or recounted now."""

    def to_json(self) -> dict[str, Any]:
        """Return whether it matches and what changed, as plain JSON."""
        return {"matches": self.matches, "changes": [each._asdict() for each in self.changes]}


NOTHING_REBUILT: Final = Rebuilt(False, None, (), (PromptChange("unknown", "prompt"),))


async def rebuild(conversation: Conversation, explanation: Explanation) -> Rebuilt:
    """Return the prompt that an explanation of this session is about."""
    references = _check_explanation(explanation).references
    if references is None or references.session != conversation.key:
        return NOTHING_REBUILT
    known = [""] if conversation.knows else []
    reader = SourceReader(
        conversation.store,
        SessionKey(conversation.key),
        owner=conversation.owner,
        facts_of=conversation.facts_owner,
        agents=[*known, *([conversation.agent] if conversation.agent else [])],
        alone=conversation.isolated,
    )
    sources = await reader.read(references)
    builder = _Builder(references, sources, conversation)
    return builder.rebuilt(explanation)


def _check_explanation(value: object) -> Explanation:
    if not isinstance(value, Explanation):
        raise InvalidInput(
            "rebuild takes an explanation, one of `await session.explanations()`, not"
            f" {show(value)}"
        )
    return value


class _Builder:
    """Builds one prompt again, and compares it with its digests."""

    def __init__(
        self, references: References, sources: RebuildSources, conversation: Conversation
    ) -> None:
        self.references = references
        self.sources = sources
        self.conversation = conversation
        counter = conversation.counter
        self.counter: TokenCounter = text_counter(counter) if references.is_text else counter
        self.changes: list[PromptChange] = []
        self._ways: Mapping[str, Callable[[Reference], Message | None]] = {
            "whole": lambda each: self._live(each.seqs[0]),
            "alone": self._alone,
            "cut": self._cut,
            "short": self._short,
            "lines": self._lines,
            "no_result": self._no_result,
            "cached_call": self._cached_call,
            "facts": self._facts,
            "summary": self._summary,
            "recalled": self._recalled,
        }

    def rebuilt(self, explanation: Explanation) -> Rebuilt:
        """Return the prompt, and what changed."""
        references, sources = self.references, self.sources
        prompt = "" if references.is_text else sources.system_prompt
        system = digest_of_system(prompt if references.system else "", sources.keys)
        if short_form(system) != references.system:
            is_known = sources.keys.name == references.key
            self.changes.append(PromptChange("changed" if is_known else "unknown", "system"))
        found: list[Message] = []
        digests: list[bytes] = []
        for each in references.messages:
            message, digest = self._built(each)
            digests.append(digest)
            found += [] if message is None else [message]
        whole = digest_of_prompt(system, digests, sources.keys)
        matches = bool(whole) and whole == references.digest
        if not matches and not self.changes:
            self.changes.append(PromptChange("unknown", "prompt"))
        self._note_hidden()
        counted = [self._counted(message) for message in found]
        tokens = self._tokens(prompt if references.system else "", counted)
        same = references.counter == self.conversation.counter.name
        if not same or (matches and tokens != explanation.why.tokens):
            self.changes.append(PromptChange("recounted", "counter"))
        context = None
        if matches:
            why = explanation.why
            system_prompt = prompt if references.system else ""
            pairs = zip(counted, references.messages, strict=True)
            chosen = Selection(
                why.budget,
                tokens,
                system_prompt,
                tuple(counted),
                why.choices,
                made=tuple((m, made) for m, made in pairs if made.how != "whole"),
            )
            context = Context(chosen, is_text=references.is_text)
        return Rebuilt(matches, context, tuple(counted), tuple(_in_ranges(self.changes)))

    def _built(self, reference: Reference) -> tuple[Message | None, bytes]:
        """Return a message as it was, or as it is now, and its digest; note what changed."""
        before = len(self.changes)
        way = self._ways.get(reference.how)
        message = way(reference) if way else None
        if message is None:
            if len(self.changes) == before:
                self._note(reference, "unknown")
            return None, b""
        digest = digest_of(message, reference, self.sources.keys)
        if digest and short_form(digest) == reference.digest:
            del self.changes[before:]  # whatever changed, its text did not
            return message, digest
        if len(self.changes) == before:
            known = bool(digest) and self.sources.keys.name == self.references.key
            reason: ChangeReason = "changed" if known and reference.digest else "unknown"
            self._note(reference, reason)
        return message, b""

    def _note(self, reference: Reference, reason: ChangeReason) -> None:
        """Note a change of all that a message was made of."""
        if reference.summary is not None:
            last = reference.summary.last
            self.changes.append(PromptChange(reason, "summary", last, last))
        for chunk in reference.chunks:
            change = PromptChange(reason, "message", chunk.seq, chunk.seq, chunk.session)
            self.changes.append(change)
        self.changes += [PromptChange(reason, "fact", key=fact.key) for fact in reference.facts]
        seqs = [seq for seq in reference.seqs if seq]
        self.changes += [PromptChange(reason, "message", seq, seq) for seq in seqs]
        if not (reference.summary or reference.chunks or reference.facts or seqs):
            self.changes.append(PromptChange(reason, "prompt"))

    def _note_hidden(self) -> None:
        """Note the messages that contexts skip now."""
        for each in self.references.messages:
            for id, seq in _places(each):
                log = self.sources.log(id)
                if log is not None and log.marks.hides(seq):
                    self.changes.append(PromptChange("hidden", "message", seq, seq, id))

    # --- one message ---

    def _live(self, seq: int, session: str = "") -> Message | None:
        """Return a message of a log; note why there is none."""
        log = self.sources.log(session)
        message = log.messages.get(seq) if log else None
        if message is not None and message.state == "live":
            return message
        erased = message is not None and message.state == "erased"
        reason: ChangeReason = "erased" if erased else "changed" if message else "deleted"
        self.changes.append(PromptChange(reason, "message", seq, seq, session))
        return None

    def _alone(self, reference: Reference) -> Message | None:
        message = self._live(reference.seqs[0])
        return message and standing_alone(message, self.counter)

    def _cut(self, reference: Reference) -> Message | None:
        message = self._live(reference.seqs[0])
        return message and cut_again(message, reference, self.counter)

    def _short(self, reference: Reference) -> Message | None:
        message = self._live(reference.seqs[0])
        digest = self.sources.digests.get(reference.seqs[0])
        if message is None or digest is None:
            if message is not None:
                self._note(reference, "deleted")
            return None
        return replace(
            message, content=digest.text, native=None, attachments=(), tokens=digest.tokens
        )

    def _lines(self, reference: Reference) -> Message | None:
        call, *results = [seq and self._live(seq) for seq in reference.seqs]
        if not isinstance(call, Message) or None in results:
            return None
        block = Block(call)
        found = {n: each for n, each in enumerate(results) if isinstance(each, Message)}
        block.results.update(found)
        return as_lines(block, self.counter)

    def _no_result(self, reference: Reference) -> Message | None:
        call = self._live(reference.seqs[0])
        if call is None or reference.number >= len(call.tool_calls):
            return None
        return no_result(call, call.tool_calls[reference.number], self.counter)

    def _cached_call(self, reference: Reference) -> Message | None:
        """Return the call of a cached result, with the arguments that the cache had for it."""
        call, result = (self._live(seq) for seq in reference.seqs)
        if call is None or result is None:
            return None
        wish = next((each for each in call.tool_calls if each.id == result.tool_call_id), None)
        if wish is None:
            return None
        try:
            request = tool_request(wish.name, json.loads(wish.arguments))
        except (ValueError, RecursionError, InvalidInput):
            return None
        question = self.sources.own.messages.get(self.references.asked)
        key = self.conversation.cache.key(request, question.author if question else None)
        plain = replace(wish, arguments=request.arguments)
        return call_of(key, plain, result.id, self.counter)

    def _facts(self, reference: Reference) -> Message | None:
        facts = self._known(reference)
        return facts_quotation(facts, self.counter, self.references.delimiter) if facts else None

    def _known(self, reference: Reference) -> list[KnownFact] | None:
        """Return the facts that a message showed; note those that are not what they were."""
        found: list[KnownFact] = []
        for key, version in reference.facts:
            stored = self.sources.facts.get(key)
            if stored is None:
                self.changes.append(PromptChange("deleted", "fact", key=key))
            elif stored.known is None:
                self.changes.append(PromptChange("erased", "fact", key=key))
            else:
                found.append(stored.known)
                if stored.version != version:
                    self.changes.append(PromptChange("changed", "fact", key=key))
        return found if len(found) == len(reference.facts) else None

    def _summary(self, reference: Reference) -> Message | None:
        shown = reference.summary
        if shown is None:
            return None
        summary = self.sources.summaries.get(shown.last)
        if shown.number and (summary is None or summary.number != shown.number):
            reason: ChangeReason = "changed" if summary else "deleted"
            self.changes.append(PromptChange(reason, "summary", shown.last, shown.last))
            return None
        turns = [[self._live(seq) for seq in turn] for turn in shown.turns]
        found = [[message for message in turn if message] for turn in turns]
        return summary_quotation(
            shown, summary if shown.number else None, found, self.counter, self.references.delimiter
        )

    def _recalled(self, reference: Reference) -> Message | None:
        facts = self._known(reference)
        hits: list[Recollection] = []
        for id, seq, part, segment_start in reference.chunks:
            message = self._live(seq, id)
            pieces = pieces_of(message) if message else []
            if message is not None and part < len(pieces):
                text = pieces[part]
                whose = id or self.conversation.id
                hit = Recollection(SessionKey(""), whose, message, text, part, segment_start, 0, "")
                hits.append(hit)
        if facts is None or len(hits) < len(reference.chunks):
            return None
        return recalled_quotation(hits, facts, self.counter, self.references.delimiter)

    # --- tokens ---

    def _counted(self, message: Message) -> Message:
        if message.counter in (self.counter.name, "") and message.tokens:
            return message
        return replace(message, tokens=self.counter.count(message), counter=self.counter.name)

    def _tokens(self, system: str, messages: Sequence[Message]) -> int:
        prompt = self.counter.count(Message(role="system", content=system)) if system else 0
        frame = 0 if self.references.is_text else CONTEXT_FRAME
        return frame + prompt + sum([message.tokens for message in messages])


def _places(reference: Reference) -> Iterator[tuple[str, int]]:
    yield from (("", seq) for seq in reference.positions())
    yield from ((chunk.session, chunk.seq) for chunk in reference.chunks)


def _in_ranges(changes: Sequence[PromptChange]) -> Iterator[PromptChange]:
    """Yield each change once, neighboring messages with one reason as one."""
    groups: dict[PromptChange, list[tuple[int, int]]] = {}
    for change in changes:
        group = change._replace(first=0, last=0)
        groups.setdefault(group, []).append((change.first, change.last))
    for group, ranges in groups.items():
        for first, last in merged(ranges):
            yield group._replace(first=first, last=last)
