"""Breakers of hosts: webhooks to a failing host wait, those to other hosts do not."""

import pytest

from holdfast.core.breaker import HOST_PREFIX, KIND
from holdfast.core.model import Failure
from holdfast.engines.base import Engine, Saved
from holdfast.errors import EngineUnavailable
from holdfast.testing.clock import ManualClock
from holdfast.worker.supervisor.settle import EndedBatch
from holdfast.worker.wire import AskedRetry, Ending, Raised
from tests.worker.breaker_worker import (
    BAD,
    GOOD,
    POLICY,
    SECOND,
    Worker,
    a_job,
    hook,
    probed,
    state,
)


async def test_a_failing_host_is_shut_out_and_others_are_not(
    engine: Engine, clock: ManualClock
) -> None:
    worker = Worker(engine, "1", hosts=POLICY)
    await worker.breakers.sync()
    worker.breakers.admit([hook()])
    for _ in range(3):
        worker.breakers.record([EndedBatch([hook()], BAD)])
    await worker.breakers.sync()
    assert await state(engine, HOST_PREFIX + "a.example:443") == "open"
    worker.breakers.admit([hook(), hook("b.example"), a_job("t")])
    assert len(worker.started) == 3
    [release] = worker.given_back
    assert 9_000 <= release.delay_ms <= 20_000, "it comes again after the cool-down"
    clock.advance(10 * SECOND)
    await worker.breakers.sync()
    probe, second = hook(), hook()
    worker.breakers.admit([probe, second])
    assert probe not in worker.started, "first it must be known whose probe it is"
    assert second.verdict is not None
    await worker.breakers.sync()
    assert worker.started[-1] is probe
    worker.breakers.record([EndedBatch([probe], GOOD)])
    await worker.breakers.sync()
    assert await engine.load(KIND, limit=10) == [], "nothing is kept of a host that is well"


async def test_a_refusal_shows_that_the_host_works(engine: Engine) -> None:
    worker = Worker(engine, "1", hosts=POLICY)
    refused: Ending = Raised(Failure(type="HttpRefused", message="HTTP 404"))
    for ending in (BAD, BAD, refused, BAD, BAD):
        worker.breakers.record([EndedBatch([hook()], ending)])
    await worker.breakers.sync()
    assert await state(engine, HOST_PREFIX + "a.example:443") == "closed"


async def test_a_host_that_asks_to_wait_fails(engine: Engine) -> None:
    worker = Worker(engine, "1", hosts=POLICY)
    busy: Ending = AskedRetry(Failure(type="Retry", message="HTTP 503"), delay_ms=1_000)
    for _ in range(3):
        worker.breakers.record([EndedBatch([hook()], busy)])
    await worker.breakers.sync()
    assert await state(engine, HOST_PREFIX + "a.example:443") == "open"


async def test_of_two_workers_one_sends_the_probe(engine: Engine, clock: ManualClock) -> None:
    one, two = Worker(engine, "1", hosts=POLICY), Worker(engine, "2", hosts=POLICY)
    for _ in range(3):
        one.breakers.record([EndedBatch([hook()], BAD)])
    await one.breakers.sync()
    clock.advance(10 * SECOND)
    await one.breakers.sync()
    await two.breakers.sync()
    one.breakers.admit([hook()])
    two.breakers.admit([hook()])
    await one.breakers.sync()
    await two.breakers.sync()
    assert (len(one.started), len(two.started)) == (1, 0)
    assert len(two.given_back) == 1


async def test_jobs_kept_for_a_probe_are_released_at_the_end(
    engine: Engine, clock: ManualClock
) -> None:
    worker = Worker(engine, "1", hosts=POLICY)
    held = await probed(worker, clock)
    assert worker.breakers.close() == [held]
    await worker.breakers.sync()
    assert worker.started == []


async def test_jobs_kept_for_a_probe_survive_an_outage(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(engine, "1", hosts=POLICY)
    held = await probed(worker, clock)

    async def away(*_: object) -> list[Saved]:
        raise EngineUnavailable("away")

    with monkeypatch.context() as broken:
        broken.setattr(engine, "save", away)
        with pytest.raises(EngineUnavailable):
            await worker.breakers.sync()
    assert worker.started == []
    await worker.breakers.sync()
    assert worker.started == [held]


async def test_unused_hosts_are_forgotten(engine: Engine, clock: ManualClock) -> None:
    worker = Worker(engine, "1", hosts=POLICY)
    for number in range(3):
        for _ in range(3):
            worker.breakers.record([EndedBatch([hook(f"h{number}.example")], BAD)])
    await worker.breakers.sync()
    assert len(await engine.load(KIND, limit=10)) == 3
    clock.advance(3_611 * SECOND)
    await worker.breakers.sync()
    assert await engine.load(KIND, limit=10) == []
