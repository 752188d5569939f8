"""Canaries: a hundredth of a redrive goes first, and its outcome decides about the rest."""

import pytest

from holdfast.core import bounds
from holdfast.core.model import JobFilter, LeaseRequest, State
from holdfast.core.verdict import Bury, Complete, Delete, Settlement, Verdict
from holdfast.engines.base import Engine
from holdfast.ops.redrives import RedrivePlan, Redrives, RedriveState
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import Redriver
from tests.upkeep.redrive_steps import (
    ALL,
    BROKEN,
    OTHER,
    bury_jobs,
    read_redrive,
    settle_waiting,
    step_until_idle,
)


async def test_the_rest_follows_when_the_canaries_succeed(
    engine: Engine, redrives: Redrives, redriver: Redriver
) -> None:
    await bury_jobs(engine, 250)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, canary=True))).id
    for _ in range(3):
        await step_until_idle(redriver)
    view = await read_redrive(redrives, id_)
    assert (view.redrive.state, view.redrive.retried, view.redrive.left) == (
        RedriveState.CANARY, 3, 247,
    )  # fmt: skip
    assert await settle_waiting(engine, Complete()) == 3
    await step_until_idle(redriver)
    view = await read_redrive(redrives, id_)
    assert (view.redrive.state, view.redrive.retried) == (RedriveState.FINISHED, 250)


async def test_a_redrive_stops_when_the_fingerprint_recurs(
    engine: Engine, redrives: Redrives, redriver: Redriver
) -> None:
    await bury_jobs(engine, 150)
    [was] = await engine.tally(ALL, "fingerprint", limit=9)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, canary=True))).id
    await step_until_idle(redriver)
    [first, _] = await engine.lease(LeaseRequest(queues=("default",), limit=9))
    await engine.settle([Settlement(lease=first, verdict=Bury(failure=BROKEN))])
    await step_until_idle(redriver)
    view = await read_redrive(redrives, id_)
    assert view.redrive.state is RedriveState.STOPPED
    assert view.redrive.text == f"fingerprint {was.value} recurred in job {first.id}"
    assert (view.redrive.retried, view.recurred) == (2, 1)
    for _ in range(3):
        await step_until_idle(redriver)
    assert (await read_redrive(redrives, id_)).redrive.retried == 2


@pytest.mark.parametrize(
    ("ends", "wait_ms", "state", "text"),
    [
        ([Complete(), Bury(failure=OTHER)], 0, RedriveState.FINISHED, ""),
        ([Bury(failure=OTHER)] * 2, 0, RedriveState.STOPPED, "none of 2 canaries succeeded: 2"),
        ([Complete()], 0, RedriveState.CANARY, ""),
        ([Complete()], 600_000, RedriveState.FINISHED, ""),
        ([], 599_999, RedriveState.CANARY, ""),
        ([], 600_000, RedriveState.STOPPED, "none of 2 canaries succeeded within 600 s"),
    ],
)
async def test_canary_verdicts(
    redrives: Redrives, redriver: Redriver, clock: ManualClock,
    ends: list[Verdict], wait_ms: int, state: RedriveState, text: str,
) -> None:  # fmt: skip
    engine = redriver._engine
    await bury_jobs(engine, 120)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, canary=True))).id
    await step_until_idle(redriver)
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=9, lease_ms=bounds.DAY_MS))
    pairs = zip(leases, ends, strict=False)
    await engine.settle([Settlement(lease=lease, verdict=verdict) for lease, verdict in pairs])
    clock.advance(wait_ms)
    await step_until_idle(redriver)
    view = await read_redrive(redrives, id_)
    assert view.redrive.state is state
    assert view.redrive.text.startswith(text)


async def test_pruned_canaries_count_as_successful(
    engine: Engine, redrives: Redrives, redriver: Redriver
) -> None:
    await bury_jobs(engine, 3)
    id_ = (await redrives.start(RedrivePlan(wanted=ALL, canary=True))).id
    await step_until_idle(redriver)
    await settle_waiting(engine, Complete())
    assert await engine.amend(JobFilter(states=(State.DONE,)), Delete(), limit=9) == 1
    await step_until_idle(redriver)
    assert (await read_redrive(redrives, id_)).redrive.state is RedriveState.FINISHED
