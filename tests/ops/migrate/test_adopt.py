"""Every engine exports full jobs, and jobs adopted from another engine run as before."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from holdfast.conformance.harness import Harness
from holdfast.core.model import LeaseRequest, Queue, State, Status
from holdfast.core.transfer import Whole
from holdfast.core.verdict import Bury, Complete, Retry, Settlement, Verdict
from holdfast.engines.base import Engine
from tests.engines import harnesses
from tests.ops.migrate import sample_jobs
from tests.ops.migrate.sample_jobs import all_of, canonical, keys_of, mover_of, take

NAMES = ("memory", "sqlite", "postgres")


@pytest.fixture
def make(tmp_path: Path, pg_dsn: str) -> Callable[[str], Harness]:
    def make(name: str) -> Harness:
        match name:
            case "memory":
                return harnesses.memory()
            case "sqlite":
                return harnesses.sqlite(tmp_path)
            case _:
                return harnesses.postgres(pg_dsn)

    return make


@pytest.fixture
async def full(
    make: Callable[[str], Harness], request: pytest.FixtureRequest
) -> AsyncIterator[Engine]:
    async with make(request.param) as harness:
        await sample_jobs.fill(harness.engine)
        yield harness.engine


async def moved_to(engine: Engine, source: Engine) -> list[Whole]:
    """Copy the source in batches that split groups and dependencies."""
    for shallow in (True, False):
        for queue in sample_jobs.QUEUES:
            await engine.declare(Queue(name=queue.name) if shallow else queue)
    wholes = await all_of(mover_of(source))
    for at in range(0, len(wholes), 5):
        receipts = await mover_of(engine).adopt(wholes[at : at + 5])
        assert {receipt.status for receipt in receipts} == {Status.NEW}, receipts
    await mover_of(engine).hold(await keys_of(source))
    return wholes


@pytest.mark.parametrize("full", NAMES, indirect=True)
@pytest.mark.parametrize("other", NAMES)
async def test_an_adopted_job_is_the_same(
    full: Engine, other: str, make: Callable[[str], Harness]
) -> None:
    async with make(other) as harness:
        wholes = await moved_to(harness.engine, full)
        assert {whole.job.state for whole in wholes} == set(State) - {State.LEASED}
        assert canonical(await all_of(mover_of(harness.engine))) == canonical(wholes)
        assert await keys_of(harness.engine) == await keys_of(full)
        assert await harness.engine.recount(1000) == 0


@pytest.mark.parametrize("other", NAMES)
async def test_adopted_jobs_run_as_they_would_have(
    other: str, make: Callable[[str], Harness]
) -> None:
    """Run two stores to the last job, and compare every lease, outcome and list."""
    async with make("memory") as origin, make(other) as harness:
        await sample_jobs.fill(origin.engine, origin.clock.advance)
        harness.clock.advance(origin.clock.wall_ms() - harness.clock.wall_ms())
        await moved_to(harness.engine, origin.engine)
        histories = []
        for engine, clock in ((origin.engine, origin.clock), (harness.engine, harness.clock)):
            history: list[object] = []
            verdicts: dict[str, Verdict] = {"p1": Retry(10), "g4": Bury(), "p5": Bury()}
            for _ in range(60):
                leases = await engine.lease(
                    LeaseRequest(
                        queues=("plain", "ordered", "bound", "aging", "default", "dead"), limit=3
                    )
                )
                history.append([(lease.id, lease.job.attempt, lease.job.group) for lease in leases])
                await engine.settle(
                    [
                        Settlement(lease=lease, verdict=verdicts.pop(lease.id, Complete(b"1")))
                        for lease in leases
                    ]
                )
                clock.advance(100 if leases else 2_000_000)
            views = await engine.queues()
            history += [(view.queue.name, view.ready, view.blocked, view.done) for view in views]
            history.append(await engine.recount(1000))
            histories.append(history)
        assert histories[1] == histories[0]


@pytest.mark.parametrize("other", NAMES)
async def test_an_existing_job_is_not_replaced(other: str, make: Callable[[str], Harness]) -> None:
    async with make("memory") as origin, make(other) as harness:
        await sample_jobs.fill(origin.engine)
        wholes = await moved_to(harness.engine, origin.engine)
        before = canonical(await all_of(mover_of(harness.engine)))
        receipts = await mover_of(harness.engine).adopt(wholes)
        assert {receipt.status for receipt in receipts} == {Status.DUPLICATE}
        assert canonical(await all_of(mover_of(harness.engine))) == before
        assert await harness.engine.recount(1000) == 0


@pytest.mark.parametrize("other", NAMES)
async def test_a_job_that_cannot_be_adopted_is_refused(
    other: str, make: Callable[[str], Harness]
) -> None:
    async with make("memory") as origin, make(other) as harness:
        await sample_jobs.fill(origin.engine)
        await take(origin.engine, "crashed")
        wholes = {whole.job.id: whole for whole in await all_of(mover_of(origin.engine))}
        receipts = await mover_of(harness.engine).adopt(
            [wholes["crashed"], wholes["later"], wholes["done"]]
        )
        assert [receipt.code for receipt in receipts] == ["invalid_job", "unknown_queue", ""]
        assert [whole.job.id for whole in await all_of(mover_of(harness.engine))] == ["done"]
