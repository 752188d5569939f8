"""A hundredth of a redrive goes first, and what becomes of it decides about the rest."""

import pytest

from holdfast.core import limits
from holdfast.core.model import JobFilter, LeaseRequest, State
from holdfast.core.verdict import Bury, Complete, Delete, Settlement, Verdict
from holdfast.engines.base import Engine
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import RedrivePlan, Redriver, Redrives, RedriveState
from tests.upkeep.redriving import ALL, BROKEN, OTHER, dead, end, go_on, seen


async def test_a_hundredth_goes_first_and_the_rest_when_they_came_through(
    engine: Engine, redrives: Redrives, redriver: Redriver
) -> None:
    await dead(engine, 250)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, canary=True))).id
    for _ in range(3):
        await go_on(redriver)
    view = await seen(redrives, id_)
    assert (view.redrive.state, view.redrive.retried, view.redrive.left) == (
        RedriveState.CANARY, 3, 247,
    )  # fmt: skip
    assert await end(engine, Complete()) == 3
    await go_on(redriver)
    view = await seen(redrives, id_)
    assert (view.redrive.state, view.redrive.retried) == (RedriveState.FINISHED, 250)


async def test_it_stops_when_the_fingerprint_recurs(
    engine: Engine, redrives: Redrives, redriver: Redriver
) -> None:
    await dead(engine, 150)
    [was] = await engine.tally(ALL, "fingerprint", limit=9)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, canary=True))).id
    await go_on(redriver)
    [first, _] = await engine.lease(LeaseRequest(queues=("default",), limit=9))
    await engine.settle([Settlement(lease=first, verdict=Bury(failure=BROKEN))])
    await go_on(redriver)
    view = await seen(redrives, id_)
    assert view.redrive.state is RedriveState.STOPPED
    assert view.redrive.text == f"fingerprint {was.value} recurred in job {first.id}"
    assert (view.redrive.retried, view.recurred) == (2, 1)
    for _ in range(3):
        await go_on(redriver)
    assert (await seen(redrives, id_)).redrive.retried == 2


@pytest.mark.parametrize(
    ("ends", "wait_ms", "state", "text"),
    [
        ([Complete(), Bury(failure=OTHER)], 0, RedriveState.FINISHED, ""),
        ([Bury(failure=OTHER)] * 2, 0, RedriveState.STOPPED, "none of 2 canaries came through: 2"),
        ([Complete()], 0, RedriveState.CANARY, ""),
        ([Complete()], 600_000, RedriveState.FINISHED, ""),
        ([], 599_999, RedriveState.CANARY, ""),
        ([], 600_000, RedriveState.STOPPED, "none of 2 canaries came through within 600 s"),
    ],
)
async def test_what_canaries_say(
    redrives: Redrives, redriver: Redriver, clock: ManualClock,
    ends: list[Verdict], wait_ms: int, state: RedriveState, text: str,
) -> None:  # fmt: skip
    engine = redriver._engine
    await dead(engine, 120)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, canary=True))).id
    await go_on(redriver)
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=9, lease_ms=limits.DAY_MS))
    pairs = zip(leases, ends, strict=False)
    await engine.settle([Settlement(lease=lease, verdict=verdict) for lease, verdict in pairs])
    clock.advance(wait_ms)
    await go_on(redriver)
    view = await seen(redrives, id_)
    assert view.redrive.state is state
    assert view.redrive.text.startswith(text)


async def test_canaries_that_are_kept_no_longer_came_through(
    engine: Engine, redrives: Redrives, redriver: Redriver
) -> None:
    await dead(engine, 3)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, canary=True))).id
    await go_on(redriver)
    await end(engine, Complete())
    assert await engine.amend(JobFilter(states=(State.DONE,)), Delete(), limit=9) == 1
    await go_on(redriver)
    assert (await seen(redrives, id_)).redrive.state is RedriveState.FINISHED
