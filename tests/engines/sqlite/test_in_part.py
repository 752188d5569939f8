"""Calls of several transactions of which a later one fails: what was committed before it is never
called unchanged."""

from typing import Any

import pytest

from holdfast.core.flow import Limit
from holdfast.core.model import JobFilter, LeaseRequest, State
from holdfast.core.verdict import Cancel
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.errors import EngineUnavailable, OutcomeUnknown
from holdfast.testing.contract.making import a_job, a_queue, jobs
from tests.engines.sqlite.conftest import OpenEngine


def let_through(engine: SQLiteEngine, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """So many transactions; then the lock is not to be had."""
    write, left = engine._write, count

    async def write_while_let(*args: Any, **given: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise EngineUnavailable("the lock did not come: nothing was changed")
        return await write(*args, **given)

    monkeypatch.setattr(engine, "_write", write_while_let)


@pytest.mark.parametrize("count", [0, 1, 2])
async def test_an_amendment_whose_second_round_fails(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Somebody was faster at one of the jobs, so that it looks for another in its place."""
    engine, other = await open_engine(), await open_engine()
    await engine.enqueue(jobs("abc"))
    read, is_first = engine._read, True

    async def read_first(*args: Any) -> Any:
        nonlocal is_first
        found = await read(*args)
        if is_first:
            is_first = False
            await other.amend(JobFilter(ids=("b",)), Cancel(), limit=1)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_read", read_first)
        let_through(engine, patch, count)
        call = engine.amend(JobFilter(), Cancel(), limit=2)
        match count:
            case 0:
                with pytest.raises(EngineUnavailable, match="nothing was changed"):
                    await call
            case 1:
                with pytest.raises(OutcomeUnknown, match="did not come; a part of it had happened"):
                    await call
            case _:
                assert await call == 2
    states = [job.state for id_ in "abc" if (job := await engine.get(id_))]
    assert [state is State.CANCELLED for state in states] == [count > 0, True, count > 1]


async def test_a_queue_that_is_declared_before_its_jobs_are_sorted(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine()
    await engine.enqueue(jobs("a"))
    queue = a_queue("default", limits=(Limit(name="l", key="{tenant}", concurrency=1),))
    with monkeypatch.context() as patch:
        let_through(engine, patch, 1)
        assert await engine.declare(queue)
    assert queue in [view.queue for view in await engine.queues()]
    (lease,) = await engine.lease(LeaseRequest(queues=("default",)))
    assert lease.id == "a"


async def test_a_queue_that_is_dropped_before_its_jobs_are_gone(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine()
    await engine.declare(a_queue("q"))
    await engine.enqueue([a_job("a", queue="q")])
    with monkeypatch.context() as patch:
        let_through(engine, patch, 1)
        await engine.drop("q")
    assert await engine.get("a") is None
    assert "q" not in [view.queue.name for view in await engine.queues()]
    await engine.finished(10)
    rows = await engine._read(lambda unit: int(unit.run("SELECT count(*) FROM hf_jobs").get))
    assert rows == 0
