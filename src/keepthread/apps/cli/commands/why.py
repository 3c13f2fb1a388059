"""The command that says why contexts are what they are: the next one, or those that were kept."""

from typing import Annotated

import typer

from keepthread.apps.cli.invocation import Call, OwnerOption
from keepthread.apps.cli.report_types import ContextReport
from keepthread.apps.cli.wiring import context_options, current_counter, history_tokens
from keepthread.context.diff import difference
from keepthread.context.strategies import ALIASES, STRATEGIES
from keepthread.errors import InvalidInput
from keepthread.memory.session import Session


async def why(
    call: Call,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")],
    number: Annotated[
        int | None,
        typer.Argument(min=1, metavar="N", help="A stored explanation; 1 is the newest."),
    ] = None,
    owner: OwnerOption = None,
    diff: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Compare with stored explanation N.")
    ] = None,
    view: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="router, planner, chat or your own view (default: chat)."
        ),
    ] = None,
    budget: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="A token budget instead of the view's.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"{', '.join(STRATEGIES)} (default: from the settings)."),
    ] = None,
) -> None:
    """Show a context: what is included, what is left out, and why.

    It is the next context, or with N a stored explanation.
    """
    if number and (view is not None or budget is not None or strategy is not None):
        raise InvalidInput(
            "--view, --budget and --strategy apply to the next context only: use either them or N"
        )
    options = None
    settings = call.config.settings
    history = history_tokens(settings)
    if not number:
        options = context_options(settings, current_counter(call), _known(strategy))
    async with call.open_session(session, owner, options=options) as found:
        before = await _kept(found, diff, history) if diff else None
        if number:
            drawn = await _kept(found, number, history)
        else:
            context = await found.context(view, budget=budget)
            drawn = ContextReport(view=view or "chat", why=context.why)
    if before:
        _compare(call, found.id, before, drawn)
    elif call.json:
        call.write({"session": found.id, **drawn.named(), **drawn.why.to_json()})
    else:
        with call.paged() as screen:
            screen.why(found.id, drawn)


def _compare(call: Call, session: str, before: ContextReport, after: ContextReport) -> None:
    changes = difference(before.why, after.why)
    if call.json:
        sides = {"before": before.named(), "after": after.named()}
        call.write({"session": session, **sides, **changes.to_json()})
    else:
        with call.paged() as screen:
            screen.difference(session, before, after, changes)


def _known(strategy: str | None) -> str | None:
    """Return a strategy's own name, or refuse one that does not exist."""
    name = ALIASES.get(strategy, strategy) if strategy else None
    if name is not None and name not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise InvalidInput(f"there is no strategy {strategy!r}; there are {known}")
    return name


async def _kept(session: Session, number: int, history: int) -> ContextReport:
    """Return one of the contexts that were kept, or say how to keep some."""
    kept = await session.explanations(number)
    if not kept:
        raise InvalidInput(
            f"session {session.id!r} has no stored explanations; open the memory with keep_why=20 "
            "to keep the newest 20"
        )
    if len(kept) < number:
        raise InvalidInput(
            f"{len(kept)} explanations of session {session.id!r} are stored, and {number} is not "
            f"one of them; 1 is the newest, {len(kept)} the oldest"
        )
    found = kept[-1]
    return ContextReport(
        view=found.view,
        why=found.why,
        number=number,
        turn=found.turn,
        at=found.at,
        history=history if found.view == "chat" else None,
    )
