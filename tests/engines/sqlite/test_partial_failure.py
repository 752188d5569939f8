"""Calls of several transactions of which a later one fails never claim that nothing was changed."""

from typing import Any

import pytest

from holdfast.conformance.contract.cases import a_job, a_queue, jobs
from holdfast.core.limits import Limit
from holdfast.core.model import JobFilter, LeaseRequest, State
from holdfast.core.verdict import Cancel
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.errors import EngineUnavailable, OutcomeUnknown
from tests.engines.sqlite.conftest import OpenEngine


def allow_writes(engine: SQLiteEngine, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let `count` transactions pass; then the lock cannot be obtained."""
    write, left = engine._write, count

    async def write_or_fail(*args: Any, **given: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise EngineUnavailable("the lock timed out: nothing was changed")
        return await write(*args, **given)

    monkeypatch.setattr(engine, "_write", write_or_fail)


@pytest.mark.parametrize("count", [0, 1, 2])
async def test_an_amendment_whose_later_round_fails(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Another engine amends one of the jobs first, so a second round is needed."""
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
        allow_writes(engine, patch, count)
        call = engine.amend(JobFilter(), Cancel(), limit=2)
        match count:
            case 0:
                with pytest.raises(EngineUnavailable, match="nothing was changed"):
                    await call
            case 1:
                with pytest.raises(
                    OutcomeUnknown, match="timed out; a part of the call has taken effect"
                ):
                    await call
            case _:
                assert await call == 2
    states = [job.state for id_ in "abc" if (job := await engine.get(id_))]
    assert [state is State.CANCELLED for state in states] == [count > 0, True, count > 1]


async def test_declare_succeeds_if_the_relane_fails(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine()
    await engine.enqueue(jobs("a"))
    queue = a_queue("default", limits=(Limit(name="l", key="{tenant}", concurrency=1),))
    with monkeypatch.context() as patch:
        allow_writes(engine, patch, 1)
        assert await engine.declare(queue)
    assert queue in [view.queue for view in await engine.queues()]
    (lease,) = await engine.lease(LeaseRequest(queues=("default",)))
    assert lease.id == "a"


async def test_drop_succeeds_if_deleting_the_jobs_fails(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine()
    await engine.declare(a_queue("q"))
    await engine.enqueue([a_job("a", queue="q")])
    with monkeypatch.context() as patch:
        allow_writes(engine, patch, 1)
        await engine.drop("q")
    assert await engine.get("a") is None
    assert "q" not in [view.queue.name for view in await engine.queues()]
    await engine.finished(10)
    rows = await engine._read(
        lambda transaction: int(transaction.run("SELECT count(*) FROM hf_jobs").get)
    )
    assert rows == 0
