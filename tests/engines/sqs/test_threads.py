"""The threads of the client: as many as allowed, and none that outlives its work."""

import threading
from uuid import uuid4

import pytest

from holdfast.engines.sqs.threads import ThreadPool

pytestmark = pytest.mark.anyio


class Work:
    """Calls that wait in their threads until `go` is set."""

    def __init__(self, size: int) -> None:
        self.name = uuid4().hex
        self.go = threading.Event()
        self.ended = threading.Event()
        self.pool = ThreadPool(self.name, size, self.ended.set)

    @property
    def threads(self) -> int:
        return sum(each.name == self.name for each in threading.enumerate())

    def wait(self) -> int:
        self.go.wait()
        return 1


async def test_no_more_threads_than_allowed_and_every_call_runs() -> None:
    work = Work(2)
    calls = [work.pool.submit(work.wait) for _ in range(5)]
    assert work.threads == 2
    work.pool.stop()
    assert not work.ended.is_set(), "calls are under way"
    work.go.set()
    assert [await call.future for call in calls] == [1] * 5
    assert work.ended.wait(30)


async def test_an_idle_thread_is_used_again() -> None:
    work = Work(2)
    work.go.set()
    for _ in range(3):
        assert await work.pool.submit(work.wait).future == 1
    assert work.threads <= 2
    work.pool.stop()
    assert work.ended.wait(30)


async def test_a_pool_without_threads_ends_at_once() -> None:
    work = Work(1)
    work.pool.stop()
    assert work.ended.is_set()


async def test_the_result_of_an_abandoned_call_goes_to_its_callback() -> None:
    work = Work(1)
    call = work.pool.submit(work.wait)
    got: list[int] = []
    assert call.abandon(got.append)
    work.go.set()
    work.pool.stop()
    assert work.ended.wait(30)
    assert (got, call.future.done()) == ([1], False)
    assert not call.abandon(got.append), "it has ended"


async def test_an_error_is_raised_where_the_call_is_awaited() -> None:
    work = Work(1)

    def fail() -> None:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        await work.pool.submit(fail).future
    work.pool.stop()
    assert work.ended.wait(30)
