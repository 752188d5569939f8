"""Dead letters on our own endpoint: sampled, moved back by SQS itself, and purged."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from holdfast.core.model import Failure, Lease, LeaseRequest, NewJob, Queue, Reason
from holdfast.core.verdict import Bury, Complete, Settlement
from holdfast.engines.base import Engine
from holdfast.engines.extras import DeadLetterQueues, extra
from holdfast.engines.registry import open_engine
from holdfast.engines.sqs.dead_letters import read_move
from holdfast.errors import UnknownQueue, Unsupported, UsageError
from tests.engines.sqs.servers import client

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("aws")]

FAILURE = Failure(type="ValueError", message="no way")


class DeadPlace:
    """An engine with queues of its own."""

    def __init__(self, endpoint: str) -> None:
        self.prefix = f"t{uuid4().hex[:8]}-"
        self.boto = client(endpoint)
        self.engine: Engine = open_engine(
            f"sqs://us-east-1/{self.prefix}?endpoint={endpoint}&create=true"
        )

    @property
    def dead(self) -> DeadLetterQueues:
        found = extra(self.engine, DeadLetterQueues)
        assert found is not None
        return found

    async def die(self, *ids: str, queue: str = "default") -> None:
        jobs = [NewJob(id=id_, task="t", queue=queue, payload=b"{}") for id_ in ids]
        await self.engine.enqueue(jobs)
        leases: list[Lease] = []
        while len(leases) < len(ids):
            request = LeaseRequest(queues=(queue,), limit=10, wait_ms=20_000)
            leases += await self.engine.lease(request)
        verdict = Bury(Reason.EXPLICIT, FAILURE)
        await self.engine.settle([Settlement(lease=each, verdict=verdict) for each in leases])

    def receive_counts(self) -> list[str]:
        url = self.boto.get_queue_url(QueueName=f"{self.prefix}default-dlq")["QueueUrl"]
        found = self.boto.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageSystemAttributeNames=["All"]
        )
        return [each["Attributes"]["ApproximateReceiveCount"] for each in found["Messages"]]


@pytest.fixture
async def place(endpoint: str) -> AsyncIterator[DeadPlace]:
    made = DeadPlace(endpoint)
    await made.engine.open()
    yield made
    await made.engine.close()


async def test_a_sample_tells_how_letters_died_and_puts_them_back(place: DeadPlace) -> None:
    await place.die("a", "b")
    for _ in range(2):
        # The second sample finds them all again: the first has made them visible.
        found = await place.dead.sample_dead(None, limit=10)
        assert sorted(job.id for job in found) == ["a", "b"]
    for job in found:
        assert (job.reason, job.attempt, job.origin) == (Reason.EXPLICIT, 1, None)
        assert [event.failure for event in job.failures] == [FAILURE]
    assert place.receive_counts() == ["3", "3"], "each sample counts as one receive"


async def test_a_sample_is_bounded(place: DeadPlace) -> None:
    await place.die(*(f"j{number}" for number in range(12)))
    assert len(await place.dead.sample_dead(["default"], limit=11)) == 11
    assert await place.dead.sample_dead(None, limit=1) != []


async def test_a_move_brings_letters_back_to_their_queue(place: DeadPlace) -> None:
    await place.die("a")
    move = await place.dead.move_dead("default", rate=100)
    assert (move.queue, move.rate) == ("default", 100)
    request = LeaseRequest(queues=("default",), wait_ms=20_000)
    (lease,) = await place.engine.lease(request)
    assert (lease.id, lease.job.reason) == ("a", None)
    await place.engine.settle([Settlement(lease=lease, verdict=Complete())])
    (done,) = await place.dead.dead_moves(None)
    assert (done.moved, done.left) == (1, 0)
    # One that has ended is not cancelled any more.
    assert await place.dead.cancel_dead_move("default") is not None


async def test_a_queue_whose_letters_were_never_moved_has_no_move(place: DeadPlace) -> None:
    assert await place.dead.dead_moves(["default"]) == []
    assert await place.dead.cancel_dead_move("default") is None
    with pytest.raises(UnknownQueue):
        await place.dead.dead_moves(["missing"])


async def test_letters_of_several_queues_are_not_moved(place: DeadPlace) -> None:
    await place.engine.declare(Queue(name="grave"))
    await place.engine.declare(Queue(name="orders", dead_queue="grave"))
    # Jobs may die in the dead queue itself, too: SQS could not tell theirs apart.
    with pytest.raises(Unsupported, match=r"come from grave, orders: put them back with"):
        await place.dead.move_dead("grave", rate=None)
    with pytest.raises(UsageError, match="in the queue grave: name that one"):
        await place.dead.move_dead("orders", rate=None)
    await place.die("a", queue="orders")
    (letter,) = await place.dead.sample_dead(["grave"], limit=10)
    assert (letter.queue, letter.origin) == ("grave", "orders")


async def test_a_purge_deletes_all_letters_of_a_queue(place: DeadPlace) -> None:
    await place.die("a", "b")
    await place.dead.purge_dead("default")
    assert await place.dead.sample_dead(None, limit=10) == []


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ({"Status": "CANCELLING"}, ("running", 0, 0)),
        ({"Status": "RUNNING", "ApproximateNumberOfMessagesMoved": 2,
          "ApproximateNumberOfMessagesToMove": 5}, ("running", 2, 3)),
        ({"Status": "FAILED", "ApproximateNumberOfMessagesMoved": "x"}, ("failed", 0, 0)),
        ({}, ("failed", 0, 0)),
    ],
)  # fmt: skip
def test_a_move_task_is_read_with_care(
    task: dict[str, Any], expected: tuple[str, int, int]
) -> None:
    move = read_move("q", task)
    assert (move.state, move.moved, move.left) == expected
