"""Power cuts at random points, also during checkpoints and while opening."""

import os
from random import SystemRandom

import pytest

from torture.power import Durability, PowerFindings, cut_many

CUTS = 40
RELAXED_CUTS = 20
"""Of these, several lose answers."""


@pytest.fixture
def seed() -> int:
    given = os.environ.get("HOLDFAST_SEED")
    return int(given) if given else SystemRandom().randrange(1_000_000)


@pytest.mark.timeout(400)
async def test_no_answered_call_is_lost(seed: int) -> None:
    findings = await cut(seed, "full", CUTS)
    assert not findings.damages, "\n".join(findings.damages)
    assert not findings.faults, "\n".join(findings.faults)
    # The instrument must have reached the places that it is for.
    assert findings.answered > CUTS
    assert findings.cuts_while_opening > 0
    assert findings.cuts_in_checkpoints > 0


async def test_relaxed_durability_loses_answers_and_nothing_else(seed: int) -> None:
    """It shows that the test above can fail: this is what synchronous = NORMAL does."""
    findings = await cut(seed, "relaxed", RELAXED_CUTS)
    assert findings.losses
    assert not findings.damages, "\n".join(findings.damages)


async def cut(seed: int, durability: Durability, cuts: int) -> PowerFindings:
    replay = f"./hf torture power --cuts {cuts} --seed {seed} --durability {durability}"
    print(f"replay: {replay}")
    findings = await cut_many(cuts, seed=seed, durability=durability)
    print(findings)
    return findings
