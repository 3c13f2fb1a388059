"""The promise that questions on Discord are answered in their channel, in order, once, in small."""

import threading
from pathlib import Path

import pytest
from discord.gateway import KeepAliveHandler

from keepthread.apps.discord.types import DiscordUser
from proofs import p22_discord
from proofs.p22_discord import PACE
from tests.seeds import SEED


def test_every_question_is_answered_in_its_channel_in_order_once() -> None:
    unseen = {"sessions resumed", *p22_discord.KINDS}
    for seed in range(SEED, SEED + 20):  # in a small run, chance may leave something out
        outcome = p22_discord.PROOF.run(p22_discord.PROOF.small, seed, lambda done, of: None)
        assert outcome.held, f"seed {seed}: {outcome.broken[:10]}"
        unseen -= {what for what in unseen if outcome.figures[what]}
        if not unseen:
            break
    assert not unseen, f"seed {SEED}"
    # A thread that outlives its bot would fail on the closed loop, in whatever test runs then.
    heartbeats = [each for each in threading.enumerate() if isinstance(each, KeepAliveHandler)]
    for thread in heartbeats:
        thread.join(10)
    assert not any(thread.is_alive() for thread in heartbeats)


async def test_the_proof_sees_a_bot_that_does_not_look_back(tmp_path: Path) -> None:
    _, broken = await p22_discord.play(
        tmp_path,
        100,
        SEED,
        lambda done, of: None,
        pace=PACE._replace(catch_up=0),
        patience=1.0,
    )
    assert broken


async def test_the_proof_sees_facts_that_are_shown_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiscordUser, "owner", "discord:user:all")
    _, broken = await p22_discord.play(tmp_path, 20, SEED, lambda done, of: None)
    assert any("was given the facts of" in line for line in broken)
    assert any("is shown the facts of" in line for line in broken)
