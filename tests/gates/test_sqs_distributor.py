"""The distributor on SQS itself: fair turns, and nothing is lost when it is killed in between."""

from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import boto3.session
import pytest

from holdfast.core.fairness import interleaved
from holdfast.engines.registry import open_queue_link
from holdfast.engines.sqs import source
from holdfast.errors import ConfigError, EngineUnavailable
from holdfast.events import Distributed
from holdfast.gates.distributor import MESSAGES_WAITING, MessageDistributor
from holdfast.ops.queues import Distribution
from holdfast.testing import sqs_client
from tests.gates.sqs_program import KEYS, SqsFaults, SqsProgram, faults, lost_reply, refusal
from tests.killed import Killed
from tests.upkeep.faulty_engine import RecordingListener

__all__ = ["faults"]


@pytest.fixture(scope="module")
def other() -> Iterator[SqsProgram]:
    with sqs_client() as client:
        yield SqsProgram(client)


@pytest.fixture(scope="module")
def session() -> boto3.session.Session:
    return boto3.session.Session()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, session: boto3.session.Session) -> None:
    monkeypatch.setattr(boto3.session, "Session", lambda: session)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


class Tenants:
    """Queues of tenants, and a work queue; each step of a distributor is a second later."""

    def __init__(self, other: SqsProgram, **fields: Any) -> None:
        self.other = other
        self.prefix = f"t{uuid4().hex[:8]}"
        self.work = self.create("work", fifo=fields.pop("fifo", False))
        limit = fields.pop("limit", None)
        self.listener = RecordingListener()
        wanted = Distribution(
            **{"source": f"{self.prefix}-t-*", "target": self.work, "depth": 100, **fields}
        )
        self.now_s = 0.0
        self.wanted = wanted
        self.distributor = self.another(limit)

    def another(self, limit: int | None = None) -> MessageDistributor:
        return MessageDistributor(
            lambda: open_queue_link(self.other.url),
            self.wanted,
            limit=limit,
            tell=self.listener,
            clock_s=lambda: self.now_s,
        )

    def create(self, name: str, *, fifo: bool = False) -> str:
        name = f"{self.prefix}-{name}" + (".fifo" if fifo else "")
        attributes = {"FifoQueue": "true"} if fifo else {}
        self.other.client.create_queue(QueueName=name, Attributes=attributes)
        return name

    def tenant(self, name: str, count: int, *, fifo: bool = False) -> str:
        full = self.create(f"t-{name}", fifo=fifo)
        if not fifo:
            self.other.send_many(full, [f"{name}{n}" for n in range(count)])
        return full

    async def step(self) -> int:
        self.now_s += 1
        return await self.distributor.once()

    def moved(self) -> list[str]:
        """The bodies of the messages in the work queue, in order; they are taken from it."""
        return [each["Body"] for each in self.other.take_all(self.work)]


@pytest.fixture
async def close() -> AsyncIterator[list[MessageDistributor]]:
    made: list[MessageDistributor] = []
    yield made
    for each in made:
        await each.close()


async def test_messages_are_moved_in_turns(
    other: SqsProgram, close: list[MessageDistributor]
) -> None:
    tenants = Tenants(other)
    close.append(tenants.distributor)
    names = [tenants.tenant("a", 4), tenants.tenant("b", 2)]
    await tenants.step()
    assert tenants.moved() == ["a0", "b0", "a1", "b1", "a2", "a3"]
    moved = Distributed(queue=tenants.work, moved=dict(zip(names, (4, 2), strict=True)))
    assert tenants.listener.events == [moved]
    assert [other.counts(name) for name in names] == [(0, 0), (0, 0)]
    assert await tenants.step() > 250


async def test_weights_and_depth(other: SqsProgram, close: list[MessageDistributor]) -> None:
    tenants = Tenants(other, depth=9)
    close.append(tenants.distributor)
    heavy = tenants.tenant("a", 20)
    tenants.tenant("b", 20)
    tenants.wanted.weights[heavy] = 2
    for _ in range(3):
        await tenants.step()
    assert other.counts(tenants.work) == (9, 0)
    assert Counter(body[0] for body in tenants.moved()) == {"a": 6, "b": 3}


@pytest.mark.parametrize("limit", [1, 7, 10, 23])
async def test_exactly_n_messages_are_moved(
    other: SqsProgram, close: list[MessageDistributor], limit: int
) -> None:
    tenants = Tenants(other, limit=limit)
    close.append(tenants.distributor)
    names = [tenants.tenant(name, 15) for name in "ab"]
    for _ in range(4):
        await tenants.step()
    assert len(tenants.moved()) == limit
    assert sum(other.counts(name)[0] for name in names) == 30 - limit
    assert {other.counts(name)[1] for name in names} == {0}


async def test_a_message_arrives_unchanged(
    other: SqsProgram, close: list[MessageDistributor]
) -> None:
    tenants = Tenants(other)
    close.append(tenants.distributor)
    attributes = {
        "text": {"DataType": "String.x", "StringValue": "ü\n"},
        "number": {"DataType": "Number", "StringValue": "1.5"},
        "bytes": {"DataType": "Binary.png", "BinaryValue": b"\0\xff"},
    }
    name = tenants.tenant("a", 0)
    other.send(name, "\tbody\r\n", MessageAttributes=attributes, MessageGroupId="acme")
    await tenants.step()
    [message] = other.take_all(tenants.work)
    assert message["Body"] == "\tbody\r\n"
    assert message["MessageAttributes"] == attributes
    assert message["Attributes"]["MessageGroupId"] == "acme"


async def test_a_noisy_tenant_delays_a_quiet_one_by_at_most_twice_its_time(
    other: SqsProgram, close: list[MessageDistributor]
) -> None:
    """Counted in messages that workers take after the quiet tenant's were sent. Alone it is 100."""
    tenants = Tenants(other, depth=MESSAGES_WAITING)
    close.append(tenants.distributor)
    tenants.tenant("noisy", 400)
    for _ in range(3):
        await tenants.step()
    assert other.counts(tenants.work) == (MESSAGES_WAITING, 0)
    tenants.tenant("quiet", 100)
    # The link lists queues only every few seconds.
    await tenants.distributor.close()
    taken: list[str] = []
    while sum(body.startswith("quiet") for body in taken) < 100:
        taken += [each["Body"] for each in other.take(tenants.work)]
        await tenants.step()
    assert len(taken) <= 200


async def test_sent_messages_count_before_the_broker_counts_them(
    other: SqsProgram, close: list[MessageDistributor], faults: SqsFaults
) -> None:
    """The count of the work queue lags: it is not overfilled within a second."""
    tenants = Tenants(other, depth=5)
    close.append(tenants.distributor)
    tenants.tenant("a", 50)

    def lag(action: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        if action == "GetQueueAttributes" and asked["QueueUrl"].endswith(tenants.work):
            return {"Attributes": {"ApproximateNumberOfMessages": "0"}}
        return None

    faults.replies = lag
    await tenants.step()
    for _ in range(3):
        await tenants.distributor.once()
    assert other.counts(tenants.work) == (5, 0)
    await tenants.step()
    assert other.counts(tenants.work) == (10, 0)


@pytest.mark.parametrize(
    ("action", "moment", "fifo"),
    [
        ("ReceiveMessage", "after", False),
        ("SendMessageBatch", "before", False),
        ("SendMessageBatch", "after", False),
        ("SendMessageBatch", "after", True),
        ("DeleteMessageBatch", "before", False),
        ("DeleteMessageBatch", "before", True),
        ("DeleteMessageBatch", "after", False),
    ],
)
async def test_killed_between_the_steps(
    other: SqsProgram,
    close: list[MessageDistributor],
    faults: SqsFaults,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
    moment: str,
    fifo: bool,
) -> None:
    """Each message is moved at least once; exactly once to a FIFO queue."""
    monkeypatch.setattr(source, "HIDDEN_S", 1)
    tenants = Tenants(other, fifo=fifo)
    names = [tenants.tenant("a", 12), tenants.tenant("b", 3)]
    deaths = [Killed(), Killed()]

    def die(given: str) -> None:
        if given == action and deaths:
            raise deaths.pop()

    setattr(faults, moment, die)
    while deaths or any(sum(other.counts(name)) for name in names):
        try:
            await tenants.step()
        except (Killed, BaseExceptionGroup):
            # It returns the messages, as the end of their timeout does if a process dies.
            await tenants.distributor.close()
            tenants.distributor = tenants.another()
    close.append(tenants.distributor)
    found = Counter(tenants.moved())
    assert set(found) == {f"a{n}" for n in range(12)} | {f"b{n}" for n in range(3)}
    if fifo:
        assert set(found.values()) == {1}
    elif (action, moment) in (("SendMessageBatch", "after"), ("DeleteMessageBatch", "before")):
        assert max(found.values()) > 1


async def test_a_lost_answer_loses_no_message(
    other: SqsProgram, close: list[MessageDistributor], faults: SqsFaults
) -> None:
    """It is not known whether the batch was sent: its messages are sent again."""
    tenants = Tenants(other)
    close.append(tenants.distributor)
    tenants.tenant("a", 5)
    left = [lost_reply()]

    def lose(action: str) -> None:
        if action == "SendMessageBatch" and left:
            raise left.pop()

    faults.after = lose
    with pytest.raises(EngineUnavailable, match="may have taken effect"):
        await tenants.step()
    await tenants.step()
    assert Counter(tenants.moved()) == {f"a{n}": 2 for n in range(5)}


async def test_a_batch_with_one_bad_entry(
    other: SqsProgram, close: list[MessageDistributor]
) -> None:
    """One message is too large for the work queue: it stays where it is, and the others go on."""
    tenants = Tenants(other)
    close.append(tenants.distributor)
    url = other.queue_url(tenants.work)
    other.client.set_queue_attributes(QueueUrl=url, Attributes={"MaximumMessageSize": "1024"})
    name = tenants.tenant("a", 0)
    other.send_many(name, ["x" * (2_000 if n == 4 else 2) + str(n) for n in range(9)])
    with pytest.raises(EngineUnavailable, match="must be shorter than"):
        await tenants.step()
    assert len(tenants.moved()) == 8
    assert other.counts(name) == (1, 0)


async def test_large_messages_are_split_into_batches(
    other: SqsProgram, close: list[MessageDistributor]
) -> None:
    tenants = Tenants(other)
    close.append(tenants.distributor)
    name = tenants.tenant("a", 0)
    for n in range(4):
        other.send(name, str(n) + "x" * (1024 * 1024 - 1))
    await tenants.step()
    assert sorted(body[0] for body in tenants.moved()) == list("0123")


async def test_groups_keep_their_order(
    other: SqsProgram, close: list[MessageDistributor], faults: SqsFaults
) -> None:
    """From FIFO to FIFO: after a message that was not sent, no later one of its group is."""
    tenants = Tenants(other, fifo=True)
    close.append(tenants.distributor)
    name = tenants.tenant("a", 0, fifo=True)
    for n in range(6):
        other.send(name, f"m{n}", MessageGroupId=f"g{n % 2}", MessageDeduplicationId=str(n))
    failed: list[str] = []

    def fail_one(action: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        if action != "SendMessageBatch" or failed:
            return None
        for entry in asked["Entries"]:
            if entry["MessageBody"] == "m2":
                failed.append(entry["Id"])
                fault = {"Id": entry["Id"], "SenderFault": True, "Code": "InvalidMessageContents"}
                rest = [each for each in asked["Entries"] if each is not entry]
                answer: dict[str, Any] = {"Successful": []}
                if rest:
                    answer = other.client.send_message_batch(
                        QueueUrl=asked["QueueUrl"], Entries=rest
                    )
                return {**answer, "Failed": [fault]}
        return None

    faults.replies = fail_one
    with pytest.raises(EngineUnavailable):
        await tenants.step()
    await tenants.step()
    assert failed
    bodies = tenants.moved()
    assert [body for body in bodies if int(body[1]) % 2 == 0] == ["m0", "m2", "m4"]
    assert [body for body in bodies if int(body[1]) % 2 == 1] == ["m1", "m3", "m5"]


async def test_two_tenants_may_use_the_same_deduplication_id(
    other: SqsProgram, close: list[MessageDistributor]
) -> None:
    tenants = Tenants(other, fifo=True)
    close.append(tenants.distributor)
    for name in "ab":
        queue = tenants.tenant(name, 0, fifo=True)
        other.send(queue, name, MessageGroupId="g", MessageDeduplicationId="1")
    await tenants.step()
    assert sorted(tenants.moved()) == ["a", "b"]


async def test_a_missing_work_queue_is_named_and_returns_the_messages(
    other: SqsProgram, close: list[MessageDistributor]
) -> None:
    tenants = Tenants(other)
    close.append(tenants.distributor)
    name = tenants.tenant("a", 3)
    other.client.delete_queue(QueueUrl=other.queue_url(tenants.work))
    with pytest.raises(ConfigError, match="has no queue"):
        await tenants.step()
    assert other.counts(name) == (3, 0)


async def test_one_tenant_that_is_denied_does_not_stop_the_others(
    other: SqsProgram, close: list[MessageDistributor], faults: SqsFaults
) -> None:
    tenants = Tenants(other)
    close.append(tenants.distributor)
    bad = tenants.tenant("a", 3)
    tenants.tenant("b", 3)
    count = len(faults.calls)

    def deny(action: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        if action == "ReceiveMessage" and asked["QueueUrl"].endswith(bad):
            raise refusal("AccessDenied", status=403)
        return None

    faults.replies = deny
    with pytest.raises(ConfigError, match="denies ReceiveMessage"):
        await tenants.step()
    assert len(faults.calls) > count
    assert tenants.moved() == ["b0", "b1", "b2"]


def test_a_broker_without_such_queues_is_refused() -> None:
    with pytest.raises(ConfigError, match="use one like sqs://REGION"):
        open_queue_link("amqp://host")


def test_the_order_of_the_turns() -> None:
    """A queue that gave fewer than planned is passed over; what is left over goes last."""
    taken = {"a": deque(["a0", "a1", "a2"]), "b": deque(["b0"])}
    assert interleaved(["a", "b", "b", "c", "a"], taken) == ["a0", "b0", "a1", "a2"]
