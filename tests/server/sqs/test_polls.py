"""Long polls: order of service, clients that leave, one waiting lease, bounded memory."""

import asyncio
import itertools
import tracemalloc
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from holdfast.core.model import Job, Lease, LeaseRequest, NewJob, Queue
from holdfast.core.verdict import Release, Settlement
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable
from holdfast.server.sqs import polls as polls_module
from holdfast.server.sqs.polls import LEASES_MAX, Polls
from holdfast.testing.clock import ManualClock

LONG_MS = 3_600_000


class FakeLeaser:
    """A queue whose test decides what arrives, and which records every call."""

    def __init__(self, *, in_groups: bool = False) -> None:
        self.in_groups = in_groups
        self.asked_for: list[int] = []
        self.returned: list[str] = []
        self.waiting = 0
        self.error: Exception | None = None
        self.on_leased: Callable[[], object] = lambda: None
        self._messages: deque[Lease] = deque()
        self._arrived = asyncio.Event()

    def send(self, *ids: str, group: str | None = None) -> None:
        self._messages.extend(lease(id_, group) for id_ in ids)
        self._arrived.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self._arrived.set()

    async def lease(self, most: int, wait_ms: int) -> list[Lease]:
        self.asked_for.append(most)
        self.waiting += 1
        try:
            await self._arrived.wait()
        finally:
            self.waiting -= 1
        if self.error is not None:
            raise self.error
        found = [self._messages.popleft() for _ in range(min(most, len(self._messages)))]
        if not self._messages:
            self._arrived.clear()
        self.on_leased()
        return found

    async def give_back(self, leases: Sequence[Lease]) -> None:
        self.returned += [each.id for each in leases]


def lease(id_: str, group: str | None = None) -> Lease:
    job = Job(id=id_, task="message", queue="q", group=group)
    return Lease(job=job, token=1, lease_ms=1_000)


async def settled() -> None:
    """Let every task run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def polls() -> AsyncIterator[Polls]:
    polls = Polls()
    yield polls
    await polls.close()


def poll(
    polls: Polls, leaser: FakeLeaser, most: int = 1, wait_ms: int = LONG_MS, key: str = "q"
) -> "asyncio.Task[list[Lease]]":
    return asyncio.create_task(polls.receive(key, leaser, most=most, wait_ms=wait_ms))


def ids(task: "asyncio.Task[list[Lease]]") -> list[str]:
    return [each.id for each in task.result()]


async def test_one_message_wakes_the_poller_that_came_first(polls: Polls) -> None:
    leaser = FakeLeaser()
    tasks = [poll(polls, leaser) for _ in range(3)]
    await settled()
    leaser.send("a")
    await settled()
    assert [task.done() for task in tasks] == [True, False, False]
    leaser.send("b", "c")
    await settled()
    assert [ids(task) for task in tasks] == [["a"], ["b"], ["c"]]
    assert not leaser.waiting


async def test_pollers_share_one_waiting_lease(polls: Polls) -> None:
    leaser = FakeLeaser()
    tasks = [poll(polls, leaser, most=10) for _ in range(50)]
    await settled()
    assert leaser.waiting == 1
    assert polls.waiting == 50
    leaser.send(*map(str, range(25)))
    await settled()
    assert [len(task.result()) for task in tasks if task.done()] == [10, 10, 5]
    assert max(leaser.asked_for) == LEASES_MAX


async def test_another_visibility_timeout_is_another_shared_poll(polls: Polls) -> None:
    first, second = FakeLeaser(), FakeLeaser()
    one, other = poll(polls, first, key="30 s"), poll(polls, second, key="60 s")
    await settled()
    second.send("a")
    await settled()
    assert ids(other) == ["a"]
    assert not one.done()


async def test_a_poll_ends_empty_when_its_time_is_over(polls: Polls) -> None:
    leaser = FakeLeaser()
    short, long = poll(polls, leaser, wait_ms=1), poll(polls, leaser)
    assert await short == []
    leaser.send("a")
    await settled()
    assert ids(long) == ["a"]


async def test_the_lease_ends_with_the_last_poller(polls: Polls) -> None:
    leaser = FakeLeaser()
    tasks = [poll(polls, leaser) for _ in range(2)]
    await settled()
    tasks[0].cancel()
    await settled()
    assert leaser.waiting == 1
    tasks[1].cancel()
    await settled()
    assert leaser.waiting == 0
    assert polls.waiting == 0
    again = poll(polls, leaser)
    leaser.send("a")
    await settled()
    assert ids(again) == ["a"]


async def test_a_client_that_left_gets_nothing_and_the_next_one_does(polls: Polls) -> None:
    leaser = FakeLeaser()
    gone, here = poll(polls, leaser), poll(polls, leaser)
    await settled()
    gone.cancel()
    leaser.send("a")
    await settled()
    assert ids(here) == ["a"]
    assert leaser.returned == []


@pytest.mark.parametrize("is_alone", [True, False])
async def test_leases_that_arrive_as_their_client_leaves_go_on(
    polls: Polls, *, is_alone: bool
) -> None:
    leaser = FakeLeaser()
    gone = poll(polls, leaser)
    others = [] if is_alone else [poll(polls, leaser)]
    await settled()
    # It is cancelled after the lease was delivered, and before its task has run again.
    leaser.on_leased = lambda: asyncio.get_running_loop().call_soon(gone.cancel)
    leaser.send("a")
    await settled()
    assert gone.cancelled()
    assert [ids(task) for task in others] == ([] if is_alone else [["a"]])
    assert leaser.returned == (["a"] if is_alone else [])


async def test_groups_are_leased_for_one_poller_at_a_time(polls: Polls) -> None:
    leaser = FakeLeaser(in_groups=True)
    first, second = poll(polls, leaser, most=3), poll(polls, leaser, most=10)
    await settled()
    leaser.send("a", "b", "c", "d", group="g")
    await settled()
    assert ids(first) == ["a", "b", "c"]
    assert ids(second) == ["d"]
    assert leaser.asked_for == [3, 10]


async def test_the_rest_of_a_group_is_not_given_to_another_poller(polls: Polls) -> None:
    leaser = FakeLeaser(in_groups=True)
    gone, small, other = (poll(polls, leaser, most=most) for most in (10, 2, 10))
    await settled()
    leaser.send("a", "b", "c", group="g")
    leaser.send("d", group="h")
    gone.cancel()
    await settled()
    assert ids(small) == ["a", "b"]
    assert leaser.returned == ["c"]
    assert ids(other) == ["d"]


async def test_an_error_reaches_every_poller_and_the_next_poll_tries_again(polls: Polls) -> None:
    leaser = FakeLeaser()
    tasks = [poll(polls, leaser) for _ in range(3)]
    await settled()
    leaser.fail(EngineUnavailable("the store is away"))
    await settled()
    for task in tasks:
        with pytest.raises(EngineUnavailable):
            task.result()
    leaser.error = None
    leaser.send("a")
    assert [each.id for each in await poll(polls, leaser)] == ["a"]


async def test_closing_answers_all_pollers_with_nothing() -> None:
    polls, leaser = Polls(), FakeLeaser()
    tasks = [poll(polls, leaser) for _ in range(3)]
    await settled()
    await polls.close()
    assert [await task for task in tasks] == [[], [], []]


async def test_two_thousand_pollers_need_little_memory(polls: Polls) -> None:
    leaser = FakeLeaser()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tasks = [poll(polls, leaser, most=10) for _ in range(2_000)]
        await settled()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / len(tasks) < 5_000
    leaser.send("a")
    await settled()
    assert [task.done() for task in tasks] == [True] + [False] * 1_999


class EngineSource:
    """A queue of a real engine."""

    in_groups = False

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine

    async def lease(self, most: int, wait_ms: int) -> list[Lease]:
        return await self._engine.lease(
            LeaseRequest(queues=("q",), limit=most, wait_ms=wait_ms, lease_ms=1_000)
        )

    async def give_back(self, leases: Sequence[Lease]) -> None:
        verdict = Release("the client disconnected", unstarted=True)
        await self._engine.settle([Settlement(lease=each, verdict=verdict) for each in leases])


async def test_messages_of_clients_that_left_count_no_receive(
    polls: Polls, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every interleaving of a send with a client that leaves."""
    monkeypatch.setattr(polls_module, "WAIT_MS", LONG_MS)
    for steps in itertools.product(range(6), repeat=2):
        engine = MemoryEngine(clock=clock)
        await engine.open()
        await engine.declare(Queue(name="q"))
        leaser = EngineSource(engine)
        task = asyncio.create_task(polls.receive(steps, leaser, most=1, wait_ms=LONG_MS))
        for _ in range(steps[0]):
            await asyncio.sleep(0)
        await engine.enqueue([NewJob(id="m", task="message", queue="q")])
        for _ in range(steps[1]):
            await asyncio.sleep(0)
        task.cancel()
        await settled()
        if not task.cancelled():
            assert [each.job.attempt for each in task.result()] == [1]
            continue
        [next_] = await leaser.lease(1, 0)
        assert next_.job.attempt == 1, steps
