"""Batches of which one partition has no answer: the other answers are kept."""

import asyncio
from contextlib import suppress

import pytest

from holdfast.app.application import Holdfast
from holdfast.conformance.contract.cases import a_job
from holdfast.core.model import LeaseRequest, Queue, Status
from holdfast.core.partitions import home_of
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.coalesced import Coalesced
from holdfast.errors import EngineUnavailable, OutcomeUnknown
from holdfast.worker.supervisor.held_leases import HeldLease, HeldLeases, Renewer
from holdfast.worker.supervisor.settle import Settler
from tests.engines.partitioned.fragile import Trio, shut_out
from tests.worker.doubles import hold_new

pytestmark = pytest.mark.anyio


async def held_in_each(trio: Trio, leases: HeldLeases) -> list[HeldLease]:
    ids = [trio.names(place, 1)[0] for place in range(3)]
    held = await hold_new(trio.engine, leases, *ids)  # type: ignore[arg-type]
    return sorted(held, key=lambda each: ids.index(each.job.id))


async def test_callers_of_one_group_commit_get_their_own_answers(trio: Trio) -> None:
    engine = Coalesced(trio.engine)
    ids = tuple(trio.names(place, 1)[0] for place in range(3))
    await engine.enqueue([a_job(id_) for id_ in ids])
    leases = await engine.lease(LeaseRequest(ids=ids, limit=3))
    await shut_out(trio, 1)
    settled = [[Settlement(lease=lease, verdict=Complete())] for lease in leases]
    both = [*settled[0], *settled[1]]
    answers = await asyncio.gather(
        *(engine.settle(each) for each in (*settled, both)), return_exceptions=True
    )
    assert [answers[0], answers[2]] == [[Outcome.SETTLED]] * 2
    assert isinstance(answers[1], OutcomeUnknown | EngineUnavailable)
    assert isinstance(answers[3], OutcomeUnknown)
    assert answers[3].known == {0: Outcome.SETTLED}


async def test_verdicts_are_settled_beside_those_that_must_wait(trio: Trio) -> None:
    leases = HeldLeases()
    left = asyncio.Event()
    settler = Settler(trio.engine, leases, lambda name: Queue(name=name), lambda _: left.set(), "w")
    first, second, third = await held_in_each(trio, leases)
    await shut_out(trio, 1)
    for held in (first, second, third):
        settler.add(held, Complete())
    running = asyncio.create_task(settler.run())
    await left.wait()
    assert [held in leases for held in (first, second, third)] == [False, True, False]
    trio.fragile[1].fault = None
    await trio.back()
    await settler.drain()
    assert second not in leases
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_leases_are_renewed_beside_those_that_cannot(trio: Trio) -> None:
    leases = HeldLeases()
    lost: list[HeldLease] = []
    renewer = Renewer(trio.engine, leases, lost.append, lost.append)
    all_held = await held_in_each(trio, leases)
    before = [held.lease for held in all_held]
    await shut_out(trio, 1)
    trio.clock.advance(1_000)
    renewer.at_once()
    with pytest.raises(OutcomeUnknown):
        await renewer._turn()
    renewed = [
        held.lease.job.deadline_at != lease.job.deadline_at
        for held, lease in zip(all_held, before, strict=True)
    ]
    assert renewed == [True, False, True]
    assert lost == [], "a partition that is out has not lost anything"


async def test_a_job_without_an_id_is_accepted_while_a_partition_is_out(trio: Trio) -> None:
    app = Holdfast(engine=trio.engine)
    await app.open()
    await shut_out(trio, 1)
    receipts = [await app.enqueue("work") for _ in range(20)]
    assert {receipt.status for receipt in receipts} == {Status.NEW}
    assert {home_of(receipt.id, 3) for receipt in receipts} == {0, 2}
    jobs = [app.job("work") for _ in range(20)]
    assert {receipt.status for receipt in await app.enqueue_many(jobs)} == {Status.NEW}
    await app.close()
