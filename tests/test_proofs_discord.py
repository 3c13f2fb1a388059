"""The promise that questions on Discord are answered in their channel, in order, once, in small."""

from pathlib import Path

from proofs import p22_discord
from proofs.p22_discord import PACE

SEED = 20_261_115


def test_every_question_is_answered_in_its_channel_in_order_once() -> None:
    outcome = p22_discord.PROOF.run(p22_discord.PROOF.small, SEED, lambda done, of: None)
    assert outcome.held, outcome.broken[:10]
    assert outcome.figures["sessions resumed"]
    assert all(outcome.figures[kind] for kind in p22_discord.KINDS)


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
