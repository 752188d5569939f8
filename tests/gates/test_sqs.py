"""Gates with SQS, on our own endpoint: every message becomes one job or one dead letter, and every
job a message, whatever fails in between."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from typing import Any

import boto3.session
import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.codec import Attribute
from holdfast.core.model import Failure, Job, JobFilter, NewJob, Queue, Reason, Receipt, State
from holdfast.core.verdict import BuryWaiting, Redrive
from holdfast.engines.base import Engine
from holdfast.engines.broker import BrokerLink
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.registry import open_link
from holdfast.engines.sqs import source
from holdfast.engines.sqs.messages import (
    DEAD_ATTRIBUTE,
    JOB_ATTRIBUTE,
    DeadAttribute,
    JobAttribute,
)
from holdfast.errors import ConfigError, EngineUnavailable
from holdfast.gates import inlet
from holdfast.gates.inlet import Inlet
from holdfast.gates.link import LinkFailed
from holdfast.gates.outlet import Outlet
from holdfast.ops.gates import Gate
from holdfast.ops.rejected import REJECTED_QUEUE
from holdfast.testing import sqs_client
from holdfast.testing.clock import ManualClock
from tests.gates.sqs_program import KEYS, SqsFaults, SqsProgram, faults, lost_reply, refusal
from tests.killed import Killed

__all__ = ["faults"]


@pytest.fixture(scope="module")
def other() -> Iterator[SqsProgram]:
    with sqs_client() as client:
        yield SqsProgram(client)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inlet, "WAIT_MS", 100)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def session() -> boto3.session.Session:
    """Reading the model of the service takes longer than a test."""
    return boto3.session.Session()


@pytest.fixture
async def link(
    other: SqsProgram, session: boto3.session.Session, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[BrokerLink]:
    monkeypatch.setattr(boto3.session, "Session", lambda: session)
    link = open_link(other.url)
    await link.open()
    yield link
    await link.close()


def inlet_of(source: str, **fields: Any) -> Gate:
    return Gate(
        **{
            "name": "in",
            "direction": "inlet",
            "broker": "main",
            "queue": "mail",
            "source": source,
            "task": "send",
            **fields,
        }
    )


def outlet_to(queue: str, **fields: Any) -> Gate:
    return Gate(
        name="out", direction="outlet", broker="main", queue="mail", routing_key=queue, **fields
    )


async def stored(engine: Engine, queue: str = "mail") -> list[Job]:
    found = (await engine.find(JobFilter(queue=queue), limit=1_000)).jobs
    whole = [await engine.get(job.id) for job in reversed(found)]
    return [job for job in whole if job is not None]


def last_failure(job: Job) -> str:
    failure = job.failures[-1].failure
    assert failure is not None
    return failure.message


async def drained(step: Inlet, count: int = 1) -> None:
    """Step until so many messages were received."""
    async with asyncio.timeout(30):
        while step.counts["received"] < count:
            await step.once()


class FailingStore(MemoryEngine):
    """Calls the hook before and after each verb that changes jobs."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.fail: Any = lambda _: None

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        self.fail("enqueue")
        receipts = await super().enqueue(jobs)
        self.fail("enqueued")
        return receipts

    async def amend(self, *given: Any, **named: Any) -> Any:
        self.fail("amend")
        found = await super().amend(*given, **named)
        self.fail("amended")
        return found


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[FailingStore]:
    engine = FailingStore(clock)
    await engine.open()
    await engine.declare(Queue(name="mail"))
    yield engine
    await engine.close()


# Inlets


async def test_a_message_becomes_a_job(engine: Engine, other: SqsProgram, link: BrokerLink) -> None:
    await engine.declare(Queue(name="mail"))
    origin = other.create()
    id_ = other.send(
        origin,
        '{"to":"ü"}',
        MessageGroupId="acme",
        MessageAttributes={
            "kind": {"DataType": "String", "StringValue": "news"},
            "size": {"DataType": "Number.int", "StringValue": "7"},
            "raw": {"DataType": "Binary", "BinaryValue": b"\0\xff"},
        },
    )
    gate = inlet_of(
        origin,
        task="send.{header.kind}",
        tenant="{tenant}",
        group="{header.size}",
        content_type="application/json",
        key="{message_id}/{receive_count}",
    )
    step = Inlet(engine, gate, link)
    await drained(step)
    [job] = await stored(engine)
    assert (job.id, job.task, job.tenant, job.group) == (f"gate:in:{id_}", "send.news", "acme", "7")
    assert (job.payload, job.content_type) == ('{"to":"ü"}'.encode(), "application/json")
    assert job.key == f"{id_}/1"
    plain = {name: job.headers[name] for name in ("kind", "size", "raw", "gate.receive_count")}
    assert plain == {"kind": "news", "size": "7", "raw": "AP8=", "gate.receive_count": "1"}
    assert int(job.headers["gate.sent_at"]) > 1_600_000_000_000
    assert job.headers["gate.message_id"] == id_
    assert job.headers["gate.tenant"] == "acme"
    assert other.counts(origin) == (0, 0)
    assert step.counts == {"received": 1, "enqueued": 1}


async def test_a_source_may_be_a_url(store: Engine, other: SqsProgram, link: BrokerLink) -> None:
    origin = other.create()
    other.send(origin)
    await drained(Inlet(store, inlet_of(other.queue_url(origin)), link))
    assert other.counts(origin) == (0, 0)


async def test_many_messages_are_few_enqueues(
    store: FailingStore, other: SqsProgram, link: BrokerLink, faults: SqsFaults
) -> None:
    origin = other.create()
    ids = other.send_many(origin, [f"m{n}" for n in range(300)])
    calls: list[str] = []
    store.fail = calls.append
    step = Inlet(store, inlet_of(origin), link)
    await drained(step, 300)
    assert {job.id for job in await stored(store)} == {f"gate:in:{id_}" for id_ in ids}
    assert calls.count("enqueue") <= 15
    deletes = [asked for action, asked in faults.calls if action == "DeleteMessageBatch"]
    assert sum(len(asked["Entries"]) for asked in deletes) == 300
    assert len(deletes) <= 45
    assert other.counts(origin) == (0, 0)


HOSTILE: dict[str, dict[str, Any]] = {
    "space": {"body": " "},
    "not a task": {"body": "x", "kind": "ü ü"},
    "command": {"body": "x", "kind": "command"},
    "ten attributes": {"body": "x", "attributes": {f"a{n}": b"\xff" * 300 for n in range(9)}},
    "large": {"body": "x" * (1024 * 1024 - 200)},
    "over the bound of the queue": {"body": "y" * 600_000, "payload_max": 500_000},
    "headers that are too large": {"body": "x", "attributes": {"a": b"\xff" * 100_000}},
    "base64 that is none": {"body": "=", "attributes": {"holdfast.encoding": "base64"}},
    "a job that is none": {"body": "x", "attributes": {"holdfast.job": "[[]]"}},
    "an odd content type": {"body": "x", "attributes": {"holdfast.content_type": "ü"}},
}
REJECTED = (
    "not a task",
    "command",
    "over the bound of the queue",
    "headers that are too large",
    "an odd content type",
)


@pytest.mark.parametrize("name", HOSTILE)
async def test_any_message_is_a_job_or_a_dead_letter(
    store: Engine, other: SqsProgram, link: BrokerLink, name: str
) -> None:
    given = HOSTILE[name]
    if "payload_max" in given:
        await store.declare(Queue(name="mail", payload_max=given["payload_max"]))
    origin = other.create()
    attributes = {
        name: {"DataType": "String", "StringValue": value}
        if isinstance(value, str)
        else {"DataType": "Binary", "BinaryValue": value}
        for name, value in given.get("attributes", {}).items()
    }
    attributes["kind"] = {"DataType": "String", "StringValue": given.get("kind", "t")}
    id_ = other.send(origin, given["body"], MessageAttributes=attributes)
    await drained(Inlet(store, inlet_of(origin, task="{header.kind}"), link))
    assert other.counts(origin) == (0, 0)
    if name in REJECTED:
        assert await stored(store) == []
        letters = await stored(store, REJECTED_QUEUE)
        assert {job.reason for job in letters} == {Reason.REJECTED}
        bodies = [job for job in letters if "headers" not in job.content_type]
        assert b"".join(job.payload for job in bodies) == given["body"].encode()
    else:
        [job] = await stored(store)
        assert (job.id, job.payload) == (f"gate:in:{id_}", given["body"].encode())


@pytest.mark.parametrize("fifo", [False, True])
async def test_a_redelivery_is_a_duplicate(
    store: Engine, other: SqsProgram, link: BrokerLink, faults: SqsFaults, fifo: bool
) -> None:
    """The process dies after the enqueue, and before the delete."""
    origin = other.create(fifo=fifo)
    given = {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if fifo else {}
    id_ = other.send(origin, **given)

    def die(action: str) -> None:
        if action == "DeleteMessageBatch":
            raise Killed

    faults.before = die
    with pytest.raises(Killed):
        await drained(Inlet(store, inlet_of(origin), link))
    faults.before = lambda _: None
    # The visibility timeout of a dead process would end.
    await link.pause(origin)
    again = Inlet(store, inlet_of(origin), link)
    await drained(again)
    assert again.counts == {"received": 1, "duplicates": 1}
    assert [job.id for job in await stored(store)] == [f"gate:in:{id_}"]
    assert other.counts(origin) == (0, 0)


async def test_entries_that_are_not_deleted_are_deleted_again(
    store: Engine, other: SqsProgram, link: BrokerLink, faults: SqsFaults
) -> None:
    """SQS answers for each entry of a batch: one fails once."""
    origin = other.create()
    other.send_many(origin, list("abc"))
    failed: list[str] = []

    def fail_one(action: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        if action != "DeleteMessageBatch" or failed:
            return None
        first, *rest = asked["Entries"]
        failed.append(first["Id"])
        answer: dict[str, Any] = other.client.delete_message_batch(
            QueueUrl=asked["QueueUrl"], Entries=rest
        )
        fault = {"Id": first["Id"], "SenderFault": False, "Code": "RequestThrottled"}
        return {**answer, "Failed": [fault]}

    faults.replies = fail_one
    await drained(Inlet(store, inlet_of(origin), link), 3)
    assert failed
    assert other.counts(origin) == (0, 0)


async def test_a_full_queue_leaves_messages_at_the_source(
    store: Engine, other: SqsProgram, link: BrokerLink
) -> None:
    await store.declare(Queue(name="mail", max_depth=13))
    origin = other.create()
    other.send_many(origin, [str(n) for n in range(40)])
    step = Inlet(store, inlet_of(origin), link)
    await drained(step, 13)
    for _ in range(3):
        await step.once()
    assert step.held == "queue mail is full"
    assert len(await stored(store)) == 13
    assert other.counts(origin) == (27, 0)


async def test_a_paused_queue_leaves_messages_at_the_source(
    store: Engine, other: SqsProgram, link: BrokerLink, faults: SqsFaults
) -> None:
    await store.declare(Queue(name="mail", paused=True))
    origin = other.create()
    other.send(origin)
    step = Inlet(store, inlet_of(origin), link)
    assert await step.once() > 0
    assert other.counts(origin) == (1, 0)
    assert not [action for action, _ in faults.calls if action == "ReceiveMessage"]


async def test_messages_return_when_the_gate_stops(
    store: Engine, other: SqsProgram, link: BrokerLink
) -> None:
    origin = other.create()
    other.send_many(origin, list("abc"))
    assert await link.receive(origin, 10, 1_000)
    assert other.counts(origin) == (0, 3)
    await link.close()
    assert other.counts(origin) == (3, 0)


async def test_if_the_store_is_down_messages_wait_at_the_source(
    store: FailingStore, other: SqsProgram, link: BrokerLink, faults: SqsFaults
) -> None:
    """Their visibility is the backoff, and nothing is received before the store answers."""
    origin = other.create()
    other.send_many(origin, [str(n) for n in range(12)])

    def fail(call: str) -> None:
        if call == "enqueue":
            raise EngineUnavailable("the store is down")

    store.fail = fail
    step = Inlet(store, inlet_of(origin, prefetch=12), link)
    with pytest.raises(EngineUnavailable):
        await drained(step, 10_000)
    changes = [asked for action, asked in faults.calls if action == "ChangeMessageVisibilityBatch"]
    delays = [entry["VisibilityTimeout"] for asked in changes for entry in asked["Entries"]]
    assert delays == [1] * 12
    assert other.counts(origin) == (0, 12)
    store.fail = lambda _: None
    while len(await stored(store)) < 12:
        await step.once()
    assert other.counts(origin) == (0, 0)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("action", ["ReceiveMessage", "DeleteMessageBatch"])
async def test_sqs_fails_and_nothing_is_lost(
    store: Engine,
    other: SqsProgram,
    link: BrokerLink,
    faults: SqsFaults,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
    moment: str,
) -> None:
    """A request is throttled, or its answer is lost: the client or the gate repeats it."""
    monkeypatch.setattr(source, "HIDDEN_S", 1)
    name = other.create()
    ids = other.send_many(name, list("abcde"))
    left = [lost_reply() if moment == "after" else refusal("RequestThrottled")]

    def fail(given: str) -> None:
        if given == action and left:
            raise left.pop()

    setattr(faults, moment, fail)
    step = Inlet(store, inlet_of(name), link)
    async with asyncio.timeout(30):
        while len(await stored(store)) < 5 or other.counts(name) != (0, 0):
            await step.once()
    assert {job.id for job in await stored(store)} == {f"gate:in:{id_}" for id_ in ids}
    assert left == []


async def test_what_a_person_must_fix_is_named(
    store: Engine, other: SqsProgram, link: BrokerLink, faults: SqsFaults
) -> None:
    with pytest.raises(LinkFailed, match="has no queue 'nowhere': create it"):
        await Inlet(store, inlet_of("nowhere"), link).once()

    def deny(action: str) -> None:
        if action == "ReceiveMessage":
            raise refusal("AccessDenied")

    faults.before = deny
    with pytest.raises(LinkFailed, match=r"denies ReceiveMessage .*: allow the action"):
        await drained(Inlet(store, inlet_of(other.create()), link))


async def test_a_deleted_source_is_named(
    store: Engine, other: SqsProgram, link: BrokerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "WAIT_S_MAX", 1)
    origin = other.create()
    step = Inlet(store, inlet_of(origin), link)
    await step.once()
    other.client.delete_queue(QueueUrl=other.queue_url(origin))
    with pytest.raises(LinkFailed, match="has no queue"):
        await drained(step)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("sqs:", "sqs://REGION"),
        ("sqs://eu-west-1/prefix", "sqs://REGION"),
        ("sqs://key:secret@eu-west-1", "sqs://REGION"),
        ("sqs://eu-west-1?endpoint=http://key:secret@host", "the option endpoint needs"),
        ("sqs://eu-west-1?create=true", "its options are: endpoint"),
    ],
)
def test_a_wrong_url_is_explained(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        open_link(url)
    assert "secret" not in str(caught.value)


# Dead-letter inlets


def dead_letter(other: SqsProgram, body: str = "x", **members: Any) -> tuple[str, str, str]:
    """A message that SQS gave up: the dead-letter queue, its origin and the message id."""
    dead = other.create("dead")
    policy = json.dumps({"deadLetterTargetArn": other.arn(dead), "maxReceiveCount": "1"})
    origin = other.create("source", RedrivePolicy=policy)
    id_ = other.send(origin, body, **members)
    for _ in range(2):
        other.receive(origin, VisibilityTimeout=0)
    assert other.counts(dead) == (1, 0)
    return dead, origin, id_


async def test_a_dead_letter_is_adopted(
    engine: Engine, other: SqsProgram, link: BrokerLink
) -> None:
    await engine.declare(Queue(name="mail"))
    dead, origin, id_ = dead_letter(other, '{"a":1}')
    step = Inlet(engine, inlet_of(dead, dead=True), link)
    await drained(step)
    [job] = await stored(engine)
    assert (job.id, job.state, job.reason) == (f"gate:in:{id_}", State.DEAD, Reason.ATTEMPTS)
    assert (job.task, job.queue, job.payload) == ("send", "mail", b'{"a":1}')
    assert job.headers["gate.source_arn"] == other.arn(origin)
    assert int(job.headers["gate.receive_count"]) >= 2
    assert int(job.headers["gate.sent_at"]) > 1_600_000_000_000
    assert last_failure(job).endswith(f"came from {other.arn(origin)}")
    assert step.counts == {"received": 1, "adopted": 1}
    assert other.counts(dead) == (0, 0)
    await engine.amend(JobFilter(ids=(job.id,)), Redrive(by="me"), limit=1)
    [job] = await stored(engine)
    assert (job.state, job.attempt, job.expires_at) == (State.WAITING, 0, None)


@pytest.mark.parametrize("length", [0, 10_000, 500_000])
async def test_a_letter_that_holdfast_buried_keeps_its_reason(
    store: Engine, other: SqsProgram, link: BrokerLink, length: int
) -> None:
    """The engine on SQS writes why a job died; a failure may be longer than any header."""
    dead = DeadAttribute(
        reason=Reason.EXPIRED,
        failure=Failure(type="E", message="too late" + "." * length, trace="t" * length),
        queue="mail",
        attempt=3,
        sent_at=1_700_000_000_000,
    )
    given = JobAttribute(
        id="j1",
        content_type="text/x",
        headers={"kind": "news"},
        attributes={"colour": Attribute("String", b"red")},
    )
    texts = {
        DEAD_ATTRIBUTE: msgspec.json.encode(dead).decode(),
        JOB_ATTRIBUTE: msgspec.json.encode(given).decode(),
    }
    origin = other.create()
    other.send(
        origin,
        MessageAttributes={
            name: {"DataType": "String", "StringValue": text} for name, text in texts.items()
        },
    )
    await drained(Inlet(store, inlet_of(origin, dead=True), link))
    [found] = await stored(store)
    assert (found.state, found.reason) == (State.DEAD, Reason.EXPIRED)
    assert (last_failure(found) or "").startswith("too late")
    assert (found.content_type, found.headers["kind"]) == ("text/x", "news")
    assert found.headers["colour"] == "red", "an attribute that SQS had no room for"
    assert (found.headers["gate.receive_count"], found.headers["gate.source_queue"]) == (
        "3",
        "mail",
    )
    assert found.headers["gate.sent_at"] == "1700000000000"


@pytest.mark.parametrize("moment", ["enqueue", "enqueued", "amend", "amended", "delete"])
async def test_killed_while_adopting(
    store: FailingStore, other: SqsProgram, link: BrokerLink, faults: SqsFaults, moment: str
) -> None:
    dead, _, id_ = dead_letter(other)

    def die(given: str) -> None:
        if given in (moment, f"{moment.capitalize()}MessageBatch"):
            raise Killed

    store.fail = faults.before = die
    with pytest.raises(Killed):
        await drained(Inlet(store, inlet_of(dead, dead=True), link))
    store.fail = faults.before = lambda _: None
    await link.pause(dead)
    await drained(Inlet(store, inlet_of(dead, dead=True), link))
    [job] = await stored(store)
    assert (job.id, job.state, job.reason) == (f"gate:in:{id_}", State.DEAD, Reason.ATTEMPTS)
    assert other.counts(dead) == (0, 0)


async def test_a_letter_that_was_put_back_is_not_buried_again(
    store: FailingStore, other: SqsProgram, link: BrokerLink, faults: SqsFaults
) -> None:
    """An operator redrives it before the message is deleted, and the message comes again."""
    dead, _, id_ = dead_letter(other)

    def die(given: str) -> None:
        if given == "DeleteMessageBatch":
            raise Killed

    faults.before = die
    with pytest.raises(Killed):
        await drained(Inlet(store, inlet_of(dead, dead=True), link))
    faults.before = lambda _: None
    await store.amend(JobFilter(ids=(f"gate:in:{id_}",)), Redrive(by="me"), limit=1)
    await link.pause(dead)
    await drained(Inlet(store, inlet_of(dead, dead=True), link))
    [job] = await stored(store)
    assert (job.state, job.redrives) == (State.WAITING, 1)
    assert other.counts(dead) == (0, 0)


# Outlets


def job(id: str = "j1", **fields: Any) -> NewJob:
    return NewJob(**{"id": id, "task": "t", "queue": "mail", "payload": b"x", **fields})


async def test_a_job_becomes_a_message(engine: Engine, other: SqsProgram, link: BrokerLink) -> None:
    await engine.declare(Queue(name="mail"))
    target = other.create()
    await engine.enqueue(
        [
            job(
                payload=b'{"a":1}',
                tenant="acme",
                headers={"kind": "news", "gate.name": "in", "gate.correlation_id": "c1"},
            )
        ]
    )
    step = Outlet(engine, outlet_to("{header.where|" + target + "}"), link)
    await step.once()
    [message] = other.take_all(target)
    texts = {name: each["StringValue"] for name, each in message["MessageAttributes"].items()}
    assert message["Body"] == '{"a":1}'
    assert texts == {
        "kind": "news",
        "holdfast.id": "j1",
        "holdfast.content_type": "application/json",
        "holdfast.correlation_id": "c1",
    }
    assert message["Attributes"]["MessageGroupId"] == "acme"
    assert [each.state for each in await stored(engine)] == [State.DONE]
    assert step.counts == {"published": 1}


AWKWARD: dict[str, dict[str, Any]] = {
    "empty": {"payload": b""},
    "bytes": {"payload": b"\0\xff"},
    "control characters": {"payload": b"a\x01b"},
    "not a character": {"payload": "\uffff".encode()},
    "1 MiB of text": {"payload": b"x" * (1024 * 1024 - 100)},
    "many headers": {"headers": {f"h{n}": "v" for n in range(60)}},
    "odd headers": {"headers": {"a b": "", "AWS.x": "\x01", ".": "ü"}},
    "nine headers": {"headers": {f"h{n}": "v" for n in range(9)}},
    "its own attributes": {"headers": {"holdfast.id": "forged", "holdfast.encoding": "base64"}},
}


@pytest.mark.parametrize("name", AWKWARD)
async def test_any_job_arrives_at_another_store(
    store: Engine, other: SqsProgram, link: BrokerLink, name: str
) -> None:
    await store.declare(Queue(name="there"))
    target = other.create()
    given = AWKWARD[name]
    await store.enqueue([job(content_type="text/x", **given)])
    await Outlet(store, outlet_to(target), link).once()
    await drained(Inlet(store, inlet_of(target, name="back", queue="there"), link))
    [found] = await stored(store, "there")
    assert (found.payload, found.content_type) == (given.get("payload", b"x"), "text/x")
    assert found.headers["holdfast.id"] == "j1"
    own = {name: text for name, text in found.headers.items() if name.startswith(("gate.", "hold"))}
    kept = {name: text for name, text in found.headers.items() if name not in own}
    sent = given.get("headers", {})
    assert kept == {name: text for name, text in sent.items() if not name.startswith("holdfast.")}


async def test_a_fifo_queue_takes_a_job_once(
    store: Engine, other: SqsProgram, link: BrokerLink, faults: SqsFaults, clock: ManualClock
) -> None:
    """The answer to the first send is lost: the job is sent again."""
    target = other.create(fifo=True)
    await store.enqueue([job("a", group="g"), job("b", group="g"), job("c")])
    left = [lost_reply()]

    def lose(action: str) -> None:
        if action == "SendMessageBatch" and left:
            raise left.pop()

    faults.after = lose
    step = Outlet(store, outlet_to(target), link)
    while {each.state for each in await stored(store)} != {State.DONE}:
        await step.once()
        clock.advance(1_000)
    found = other.take_all(target)
    groups = {
        each["MessageAttributes"]["holdfast.id"]["StringValue"]: (
            each["Attributes"]["MessageGroupId"],
            each["Attributes"]["MessageDeduplicationId"],
        )
        for each in found
    }
    assert len(found) == 3
    assert groups == {"a": ("g", "a"), "b": ("g", "b"), "c": ("c", "c")}
    assert left == []


@pytest.mark.parametrize(
    ("target", "text"),
    [("nowhere", "has no queue 'nowhere'"), ("a b", "SQS"), ("x" * 200, "SQS")],
)
async def test_an_unroutable_job_fails_with_backoff(
    store: Engine, link: BrokerLink, target: str, text: str
) -> None:
    await store.enqueue([job()])
    step = Outlet(store, outlet_to(target), link)
    await step.once()
    [found] = await stored(store)
    assert (found.state, found.attempt) == (State.WAITING, 1)
    assert found.due_at > found.created_at
    assert text in last_failure(found)
    assert step.counts == {"failed": 1}


async def test_an_exchange_is_refused(store: Engine, link: BrokerLink) -> None:
    await store.enqueue([job()])
    await Outlet(store, replace(outlet_to("q"), exchange="news"), link).once()
    [found] = await stored(store)
    assert "SQS has no exchange 'news'" in last_failure(found)


async def test_one_bad_job_does_not_fail_its_batch(
    store: Engine, other: SqsProgram, link: BrokerLink
) -> None:
    target = other.create(MaximumMessageSize="1024")
    await store.enqueue([job(f"j{n}", payload=b"x" * (2_000 if n == 3 else 2)) for n in range(10)])
    await store.enqueue([job("huge", payload=b"\0" * 900_000)])
    await Outlet(store, outlet_to(target), link).once()
    states = {each.id: each.state for each in await stored(store)}
    assert [id_ for id_, state in states.items() if state is not State.DONE] == ["j3", "huge"]
    assert len(other.take_all(target)) == 9


async def test_denied_is_a_failure_of_the_job(
    store: Engine, other: SqsProgram, link: BrokerLink, faults: SqsFaults
) -> None:
    """It is about that queue; the jobs to others are sent."""
    target = other.create()
    await store.enqueue([job()])

    def deny(action: str) -> None:
        if action == "SendMessageBatch":
            raise refusal("AccessDenied", status=403)

    faults.before = deny
    await Outlet(store, outlet_to(target), link).once()
    [found] = await stored(store)
    assert (found.state, found.attempt) == (State.WAITING, 1)
    assert "allow the action sqs:SendMessage" in last_failure(found)


async def test_expired_credentials_cost_no_attempt(
    store: Engine, other: SqsProgram, link: BrokerLink, faults: SqsFaults, clock: ManualClock
) -> None:
    target = other.create()
    await store.enqueue([job()])

    def refuse(action: str) -> None:
        if action == "SendMessageBatch":
            raise refusal("ExpiredToken", status=403)

    faults.before = refuse
    step = Outlet(store, outlet_to(target), link)
    for _ in range(10):
        with pytest.raises(LinkFailed, match="have expired: renew them"):
            await step.once()
        clock.advance(1_000)
    [found] = await stored(store)
    assert (found.state, found.attempt) == (State.WAITING, 0)
    faults.before = lambda _: None
    await step.once()
    assert len(other.take_all(target)) == 1


async def test_throttled_jobs_are_sent(
    store: Engine, other: SqsProgram, link: BrokerLink, faults: SqsFaults
) -> None:
    target = other.create()
    await store.enqueue([job(f"j{n}") for n in range(25)])
    left = [refusal("RequestThrottled", status=403)] * 3

    def throttle(action: str) -> None:
        if action == "SendMessageBatch" and left:
            raise left.pop()

    faults.before = throttle
    step = Outlet(store, outlet_to(target), link)
    await step.once()
    assert step.counts == {"published": 25}
    assert len(other.take_all(target)) == 25


async def test_killed_after_the_send(
    store: Engine, other: SqsProgram, link: BrokerLink, clock: ManualClock
) -> None:
    """The lease ends, and the job is sent again: at least once."""
    target = other.create()
    await store.enqueue([job()])

    class Dying(Outlet):
        async def _settle(self, settlements: Any) -> None:
            if settlements:
                raise Killed

    with pytest.raises(Killed):
        await Dying(store, outlet_to(target), link).once()
    clock.advance(60_000)
    with suppress(ConfigError):
        from holdfast.ops.workers import end_overdue_and_expired

        await end_overdue_and_expired(store, 100)
    clock.advance(60_000)
    await Outlet(store, outlet_to(target), link).once()
    sent = [
        each["MessageAttributes"]["holdfast.id"]["StringValue"] for each in other.take_all(target)
    ]
    assert sent == ["j1", "j1"]


def test_the_reason_of_a_letter_is_one_that_exists() -> None:
    from holdfast.engines.broker import Message

    gate = inlet_of("dead", dead=True)
    given = Message(properties={"reason": "expired", "failure": "too late"})
    found = inlet.burial(gate, given)
    assert isinstance(found, BuryWaiting)
    assert found.reason is Reason.EXPIRED
    assert inlet.burial(gate, Message(properties={"reason": "x"})).reason is Reason.ATTEMPTS
