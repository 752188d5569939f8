"""Power cuts at random points, also during checkpoints and while opening.

More of them: ./hf torture power --cuts 1000
"""

import os
from collections.abc import Callable
from random import SystemRandom

import pytest

from torture.power import Durability, PowerFindings, cut_many

CUTS_MIN = 15
CUTS_MAX = 150
"""One cut in eight is made while opening, and one in four loses answers of relaxed durability. A
run ends when it has seen them."""


@pytest.fixture
def seed() -> int:
    given = os.environ.get("HOLDFAST_SEED")
    return int(given) if given else SystemRandom().randrange(1_000_000)


@pytest.mark.timeout(400)
async def test_no_answered_call_is_lost(seed: int) -> None:
    def is_enough(findings: PowerFindings) -> bool:
        reached = findings.cuts_while_opening and findings.cuts_in_checkpoints
        return findings.cuts >= CUTS_MIN and bool(reached)

    findings = await cut(seed, "full", is_enough)
    assert not findings.damages, "\n".join(findings.damages)
    assert not findings.faults, "\n".join(findings.faults)
    # The instrument must have reached the places that it is for.
    assert findings.cuts >= CUTS_MIN
    assert findings.answered > findings.cuts
    assert findings.cuts_while_opening > 0
    assert findings.cuts_in_checkpoints > 0


async def test_relaxed_durability_loses_answers_and_nothing_else(seed: int) -> None:
    """It shows that the test above can fail: this is what synchronous = NORMAL does."""

    def is_enough(findings: PowerFindings) -> bool:
        return findings.cuts >= CUTS_MIN and bool(findings.losses)

    findings = await cut(seed, "relaxed", is_enough)
    assert findings.losses
    assert not findings.damages, "\n".join(findings.damages)


async def cut(
    seed: int, durability: Durability, is_enough: Callable[[PowerFindings], bool]
) -> PowerFindings:
    replay = f"./hf torture power --cuts {CUTS_MAX} --seed {seed} --durability {durability}"
    print(f"replay: {replay}")
    findings = await cut_many(CUTS_MAX, seed=seed, durability=durability, is_enough=is_enough)
    print(findings)
    return findings
