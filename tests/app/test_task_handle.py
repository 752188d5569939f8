"""Results: waited for gently, and what has none says why."""

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast, JobCancelled, JobFailed
from holdfast.core.model import State
from holdfast.errors import JobGone, ResultTimeout, UsageError


def make(app: Holdfast) -> Any:
    @app.task
    def answer() -> set[int]:
        return {1}

    return answer


async def test_a_result_comes_when_the_job_is_done(app: Holdfast) -> None:
    handle = await make(app).aenqueue()
    waiting = asyncio.create_task(handle.aresult(timeout="1m"))
    [lease] = await app.lease()
    await app.complete(lease, [1, 2])
    assert await waiting == {1, 2}
    assert await handle.aresult() == {1, 2}


async def test_a_job_that_is_not_over_times_out_and_goes_on(app: Holdfast) -> None:
    handle = await make(app).aenqueue()
    with pytest.raises(ResultTimeout, match=f"job {handle.id} is still waiting"):
        await handle.aresult(timeout=0)
    with pytest.raises(TimeoutError):
        await handle.aresult(timeout="30ms")
    with pytest.raises(UsageError, match='timeout "soon"'):
        await handle.aresult(timeout="soon")
    assert await app.lease()


async def test_a_dead_job_says_its_reason_and_last_error(app: Holdfast) -> None:
    handle = await make(app).using(max_attempts=2, backoff="constant(0)").aenqueue()
    for error in (KeyError("first"), ValueError("last")):
        [lease] = await app.lease(wait=1)
        await app.fail(lease, error)
    with pytest.raises(JobFailed, match=r"is dead \(attempts\): ValueError: last") as caught:
        await handle.aresult()
    assert caught.value.job.state is State.DEAD


async def test_a_job_in_a_dead_queue_is_dead_to_who_waits_for_it(app: Holdfast) -> None:
    await app.declare("graveyard")
    await app.declare("default", dead_queue="graveyard")
    handle = await make(app).aenqueue()
    [lease] = await app.lease()
    await app.bury(lease, "no")
    with pytest.raises(JobFailed, match=r"\(explicit\): no"):
        await handle.aresult()


async def test_a_cancelled_or_deleted_job_has_no_result(app: Holdfast) -> None:
    handle = await make(app).aenqueue()
    await app.cancel(handle.id)
    with pytest.raises(JobCancelled, match="was cancelled"):
        await handle.aresult()
    await app.delete(handle.id)
    with pytest.raises(JobGone, match="no longer exists"):
        await handle.aresult()


def test_a_result_in_blocking_code() -> None:
    app = Holdfast("memory:")
    handle = make(app).enqueue()
    with pytest.raises(ResultTimeout):
        handle.result(timeout=0)
    [lease] = app.run(app.lease())
    app.run(app.complete(lease, [3]))
    assert handle.result() == {3}
    assert repr(handle) == f"<JobHandle {handle.id} of tests.app.test_task_handle:make.answer>"
    asyncio.run(app.close())
