"""The engine on our own endpoint: what SQS does differently from other engines."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.conformance.contract.cases import a_job, a_queue, jobs, settle
from holdfast.core.model import (
    Failure,
    Job,
    JobFilter,
    Lease,
    NewJob,
    Overrides,
    Queue,
    Reason,
    Renewal,
    Status,
)
from holdfast.core.verdict import (
    Bury,
    Complete,
    Forward,
    Outcome,
    Release,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.engines.base import Engine
from holdfast.engines.extras import Examinable, extra
from holdfast.engines.registry import open_engine
from holdfast.engines.sqs import delivery, messages
from holdfast.engines.sqs import lease as sqs_lease
from holdfast.engines.sqs.client import SqsClient, SqsMessage
from holdfast.engines.sqs.faults import DeniedByPolicy
from holdfast.engines.sqs.settle import HELD_MS_MAX
from holdfast.engines.wire import SentLease
from holdfast.errors import ConfigError, EngineUnavailable, InvalidQueue, Unsupported
from holdfast.ops.queues import change_queue
from tests.engines.sqs.place import Place
from tests.engines.sqs.servers import create_queue

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("aws")]


async def test_a_queue_is_created_with_its_dead_letters_on_first_use(place: Place) -> None:
    await place.engine.enqueue([a_job(queue="mail.eu")])
    source = place.boto.get_queue_attributes(
        QueueUrl=place.url("mail__eu"), AttributeNames=["All"]
    )["Attributes"]
    dead = place.boto.get_queue_attributes(
        QueueUrl=place.url("mail__eu-dlq"), AttributeNames=["All"]
    )["Attributes"]
    policy = json.loads(source["RedrivePolicy"])
    assert policy["deadLetterTargetArn"] == dead["QueueArn"]
    assert policy["maxReceiveCount"] > a_queue().max_attempts
    assert int(dead["MessageRetentionPeriod"]) > int(source["MessageRetentionPeriod"])
    assert [view.queue.name for view in await place.engine.queues()] == ["default", "mail.eu"]


async def test_no_right_to_queues_that_are_not_used(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(endpoint)
    create_queue(endpoint, f"{place.prefix}mail")
    queue_url = SqsClient.queue_url

    async def restricted(self: SqsClient, name: str) -> str:
        if name.endswith("default"):
            raise DeniedByPolicy("Amazon SQS denies GetQueueUrl")
        return await queue_url(self, name)

    monkeypatch.setattr(SqsClient, "queue_url", restricted)
    await place.open("create=false")
    try:
        await place.engine.enqueue([a_job("a", queue="mail")])
        assert (await place.one(queues=("mail",))).id == "a"
        with pytest.raises(EngineUnavailable, match="denies"):
            await place.lease()
    finally:
        await place.engine.close()


async def test_without_create_an_unknown_queue_is_refused(endpoint: str) -> None:
    place = Place(endpoint)
    engine = await place.open("create=false")
    assert await engine.queues() == []
    (receipt,) = await engine.enqueue(jobs("a"))
    assert (receipt.status, receipt.code) == (Status.REFUSED, "unknown_queue")
    assert await place.lease() == []
    await engine.declare(a_queue())
    assert [receipt.status for receipt in await engine.enqueue(jobs("a"))] == [Status.NEW]
    await engine.close()


async def test_a_queue_that_is_not_listed_yet_can_be_changed(endpoint: str) -> None:
    """SQS lists a new queue up to a minute late; our endpoint lists `default` once it is used."""
    engine = open_engine(f"sqs://us-east-1?endpoint={endpoint}&create=true")
    await engine.open()
    try:
        assert "default" not in {view.queue.name for view in await engine.queues(counts=False)}
        wanted = Queue(name="default", lease_ms=5_000)
        assert await change_queue(engine, "default", lambda _: wanted) == wanted
        [view] = await engine.queues(names=["default"])
        assert view.queue == wanted
    finally:
        await engine.close()


async def test_the_lease_has_what_the_handler_may_need(place: Place) -> None:
    await place.engine.enqueue(jobs("a"))
    headers = (await place.one()).job.headers
    assert headers[delivery.URL_HEADER] == place.url("default")
    assert headers[delivery.ARN_HEADER].endswith(f":{place.prefix}default")
    assert headers[delivery.ID_HEADER]
    assert headers[delivery.HANDLE_HEADER]
    assert delivery.POISON_HEADER not in headers


async def test_a_retried_job_keeps_its_fields_and_counts_its_attempts(place: Place) -> None:
    new = a_job(
        payload=b"\x00\xff",
        tenant="t\n",
        labels={"a": "é\x01"},
        overrides=Overrides(lease_ms=90_000),
    )
    await place.engine.enqueue([new])
    first = await place.one()
    assert (first.job.payload, first.lease_ms) == (b"\x00\xff", 90_000)
    assert await settle(place.engine, first, Retry()) is Outcome.SETTLED
    again = await place.one()
    assert (again.job.attempt, again.job.tenant, again.job.labels) == (2, "t\n", {"a": "é\x01"})
    assert again.token > first.token


async def test_a_retry_hides_the_message_for_its_backoff(place: Place) -> None:
    await place.engine.enqueue(jobs("a"))
    assert await settle(place.engine, await place.one(), Retry(1_001)) is Outcome.SETTLED
    await asyncio.sleep(1.1)
    assert await place.lease() == [], "rounded up to whole seconds"
    assert (await place.one(wait_ms=5_000)).job.attempt == 2


async def test_a_message_whose_attempts_are_used_up_is_buried_at_delivery(place: Place) -> None:
    await place.engine.declare(a_queue(max_attempts=2))
    await place.engine.enqueue(jobs("a"))
    for _ in range(2):
        assert await settle(place.engine, await place.one(), Release()) is Outcome.SETTLED
    assert await place.lease() == []
    (letter,) = await place.letters()
    assert (letter.id, letter.reason, letter.attempt) == ("a", Reason.ATTEMPTS, 2)


async def test_a_job_that_was_given_back_unstarted_does_not_die(place: Place) -> None:
    """Otherwise a worker that stops would kill the jobs with one attempt that it has not begun."""
    await place.engine.declare(a_queue(max_attempts=1))
    await place.engine.enqueue([a_job("a", labels={"k": "v"})])
    for _ in range(2):
        lease = await place.one(wait_ms=5_000)
        assert (lease.id, lease.job.attempt, lease.job.labels) == ("a", 1, {"k": "v"})
        assert await settle(place.engine, lease, Release(unstarted=True)) is Outcome.SETTLED
    lease = await place.one(wait_ms=5_000)
    assert await settle(place.engine, lease, Release()) is Outcome.SETTLED
    assert await place.lease() == []
    (letter,) = await place.letters()
    assert (letter.reason, letter.attempt) == (Reason.ATTEMPTS, 1)


async def test_an_expired_message_is_buried_at_delivery(place: Place) -> None:
    await place.engine.enqueue([a_job("a", expires_ms=0), a_job("b", expires_ms=60_000)])
    assert [lease.id for lease in await place.lease()] == ["b"]
    (letter,) = await place.letters()
    assert (letter.id, letter.reason) == ("a", Reason.EXPIRED)


HOSTILE: dict[str, tuple[str, dict[str, str]]] = {
    "encoding": ("x", {"holdfast_encoding": "base64"}),
    "job": ("x", {"holdfast_job": "{"}),
    "ten attributes": ("x", {"holdfast_job": "{", **{f"n{n}": "v" for n in range(9)}}),
}


@pytest.mark.parametrize(("body", "attributes"), HOSTILE.values(), ids=HOSTILE)
async def test_an_unreadable_message_is_buried_as_it_came(
    place: Place, body: str, attributes: dict[str, str]
) -> None:
    id_ = await place.send("default", body, **attributes)
    await place.engine.enqueue(jobs("a"))
    assert [lease.id for lease in await place.lease(wait_ms=3_000)] == ["a"]
    (letter,) = await place.letters()
    assert (letter.reason, letter.id != id_, letter.payload) == (Reason.REJECTED, True, b"x")
    found = await place.ask("receive_message", QueueUrl=place.url("default-dlq"))
    assert "Messages" not in found, "it is leased"


async def test_a_foreign_message_has_the_task_of_its_queue(place: Place) -> None:
    create_queue(place.endpoint, f"{place.prefix}theirs")
    tags = {"holdfast.task": "mail.send"}
    await place.ask("tag_queue", QueueUrl=place.url("theirs"), Tags=tags)
    id_ = await place.send("theirs", "hello", colour="red")
    job = (await place.one(queues=("theirs",))).job
    assert (job.id, job.task) == (id_, "mail.send")


async def test_a_buried_job_is_leased_as_a_dead_letter_and_deleted_there(place: Place) -> None:
    await place.engine.enqueue(jobs("ab"))
    failure = Failure(type="ValueError", message="bad")
    for lease in await place.lease():
        assert await settle(place.engine, lease, Bury(Reason.EXPLICIT, failure)) is Outcome.SETTLED
    first, second = await place.lease(dead=True)
    assert first.job.is_dead_letter
    assert (first.job.attempt, first.job.headers[delivery.POISON_HEADER]) == (1, "true")
    assert first.job.headers[delivery.URL_HEADER] == place.url("default-dlq")
    assert await settle(place.engine, first, Complete()) is Outcome.SETTLED
    assert await settle(place.engine, second, Retry()) is Outcome.SETTLED
    again = await place.one(dead=True)
    assert (again.id, again.job.releases) == (second.id, 1)
    assert await settle(place.engine, again, Forward("default")) is Outcome.SETTLED
    assert await place.lease(dead=True) == []
    fresh = await place.one()
    assert (fresh.id, fresh.job.attempt, fresh.job.is_dead_letter) == (second.id, 1, False)
    assert delivery.POISON_HEADER not in fresh.job.headers


async def test_dead_letters_of_a_queue_with_a_dead_queue(place: Place) -> None:
    await place.engine.declare(a_queue("grave"))
    await place.engine.declare(a_queue(dead_queue="grave"))
    await place.engine.enqueue(jobs("a"))
    await settle(place.engine, await place.one(), Bury())
    assert await place.letters() == []
    (letter,) = await place.letters("grave")
    assert (letter.queue, letter.origin) == ("grave", "default")
    views = {view.queue.name: view for view in await place.engine.queues()}
    assert (views["grave"].dead, views["default"].dead) == (1, 0)


async def test_follow_ups_and_forwarded_jobs_are_sent(place: Place) -> None:
    await place.engine.enqueue([a_job("a", headers={"h": "1"}), a_job("b")])
    leases = {lease.id: lease for lease in await place.lease()}
    then = (NewJob(id="c", task="next", queue="then"),)
    outcomes = await place.engine.settle(
        [
            Settlement(lease=leases["a"], verdict=Forward("other")),
            Settlement(lease=leases["b"], verdict=Complete(then=then)),
        ]
    )
    assert outcomes == [Outcome.SETTLED] * 2
    moved = await place.one(queues=("other",))
    assert (moved.id, moved.job.attempt, moved.job.origin) == ("a", 1, "default")
    assert messages.own_headers(moved.job.headers) == {"h": "1"}
    assert (await place.one(queues=("then",))).job.task == "next"
    assert await place.lease() == []


OUTPUTS: dict[str, Verdict] = {
    "follow-up": Complete(then=(NewJob(id="c", task="next", queue="default"),)),
    "forward": Forward("default"),
    "bury": Bury(),
}


@pytest.mark.parametrize("verdict", OUTPUTS.values(), ids=OUTPUTS)
async def test_a_message_whose_output_is_not_sent_is_not_deleted(
    place: Place, monkeypatch: pytest.MonkeyPatch, verdict: Verdict
) -> None:
    await place.engine.enqueue(jobs("a"))
    lease = await place.one()

    async def fail(_: Any, url: str, messages: Sequence[Any]) -> list[Any]:
        return [EngineUnavailable("throttled")] * len(messages)

    with monkeypatch.context() as patched:
        patched.setattr(SqsClient, "send", fail)
        with pytest.raises(EngineUnavailable, match="throttled"):
            await settle(place.engine, lease, verdict)
    assert await settle(place.engine, lease, Release()) is Outcome.SETTLED
    assert (await place.one()).id == "a"


async def test_a_worker_goes_on_while_its_credentials_are_not_valid(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.engine.enqueue(jobs("a"))
    lease = await place.one()

    async def deny(*_: Any, **__: Any) -> Any:
        raise ConfigError("the AWS credentials have expired: renew them")

    with monkeypatch.context() as patched:
        patched.setattr(SqsClient, "_ask", deny)
        patched.setattr(SqsClient, "receive", deny)
        for call in (
            place.lease(),
            place.engine.renew([Renewal(lease=lease)]),
            settle(place.engine, lease, Complete()),
        ):
            with pytest.raises(EngineUnavailable, match="renew them"):
                await call
    assert await settle(place.engine, lease, Complete()) is Outcome.SETTLED


async def test_the_tenant_is_the_group_of_a_fair_queue(place: Place) -> None:
    await place.engine.enqueue([a_job(tenant="acme")])
    found = await place.ask(
        "receive_message",
        QueueUrl=place.url("default"),
        MessageSystemAttributeNames=["MessageGroupId"],
    )
    [message] = found["Messages"]
    assert message["Attributes"] == {"MessageGroupId": "acme"}


async def test_several_queues_in_the_order_of_the_request(place: Place) -> None:
    await place.engine.enqueue([a_job("a", queue="q1"), a_job("b", queue="q2")])
    request: dict[str, Any] = {"queues": ("q2", "q1", "q2"), "wait_ms": 5_000}
    assert [lease.id for lease in await place.lease(**request)] == ["b", "a"]
    waiting = asyncio.create_task(place.lease(**request))
    await asyncio.sleep(0.2)
    await place.engine.enqueue([a_job("c", queue="q1")])
    assert [lease.id for lease in await waiting] == ["c"]
    again = asyncio.create_task(place.lease(**request))
    await asyncio.sleep(0.2)
    await place.engine.enqueue([a_job("d", queue="q2")])
    assert [lease.id for lease in await again] == ["d"], "the poll left before is used"


async def test_a_cancelled_lease_leaves_its_messages_to_the_next(place: Place) -> None:
    waiting = asyncio.create_task(place.lease(wait_ms=60_000))
    await asyncio.sleep(0.2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await place.engine.enqueue(jobs("a"))
    lease = await place.one(wait_ms=5_000)
    assert lease.job.attempt == 1, "no receive was wasted"


async def test_the_calls_of_a_worker_share_one_long_poll(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqs_lease, "_RETURNS_MS", 1_000)
    receive = SqsClient.receive
    waits: list[int] = []

    async def counted(self: SqsClient, url: str, **asked: Any) -> list[SqsMessage]:
        waits.append(asked["wait_s"])
        return await receive(self, url, **asked)

    monkeypatch.setattr(SqsClient, "receive", counted)
    for _ in range(2):
        assert await place.lease(wait_ms=1_000) == []
    await place.engine.enqueue([a_job("a")])
    assert (await place.one(wait_ms=10_000)).id == "a"
    assert waits == [20]


async def test_messages_that_nobody_takes_are_given_back(place: Place) -> None:
    waiting = asyncio.create_task(place.lease(wait_ms=60_000))
    await asyncio.sleep(0.2)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await place.engine.enqueue(jobs("a"))
    found = await place.ask(
        "receive_message", QueueUrl=place.url("default"), WaitTimeSeconds=10, VisibilityTimeout=60
    )
    assert len(found["Messages"]) == 1


async def test_many_jobs_in_few_receives(place: Place) -> None:
    await place.engine.enqueue([a_job(f"j{number}") for number in range(200)])
    sqs: Any = place.engine
    calls = sqs._engine.client.calls
    calls.clear()
    leases = await place.lease(limit=200)
    assert len(leases) == 200
    assert calls["ReceiveMessage"] == 20
    renewed = await place.engine.renew([Renewal(lease=lease) for lease in leases])
    assert all(renewed)
    assert calls["ChangeMessageVisibilityBatch"] == 20
    outcomes = await place.engine.settle(
        [Settlement(lease=lease, verdict=Complete()) for lease in leases]
    )
    assert set(outcomes) == {Outcome.SETTLED}
    assert sum(calls.values()) <= 60


async def test_no_lease_is_longer_than_twelve_hours_from_the_receipt(place: Place) -> None:
    await place.engine.enqueue(jobs("a"))
    lease = await place.one()
    received_at = int(lease.job.headers[delivery.RECEIVED_HEADER])

    def as_if_received(ago_ms: int) -> Lease:
        headers = {**lease.job.headers, delivery.RECEIVED_HEADER: str(received_at - ago_ms)}
        return replace(lease, job=replace(lease.job, headers=headers))

    (late,) = await place.engine.renew([Renewal(lease=as_if_received(HELD_MS_MAX - 10_000))])
    assert late is not None
    assert 0 < late.lease_ms < 10_000
    assert await place.engine.renew([Renewal(lease=as_if_received(HELD_MS_MAX))]) == [None]


async def test_a_forged_lease_is_lost(place: Place) -> None:
    await place.engine.enqueue(jobs("a"))
    lease = await place.one()
    forged = {**lease.job.headers, delivery.HANDLE_HEADER: "nonsense"}
    for headers in ({}, forged):
        bad = replace(lease, job=replace(lease.job, headers=headers))
        assert await place.engine.renew([Renewal(lease=bad)]) == [None]
        for verdict in (Complete(), Retry(), Bury(), Forward("default")):
            assert await settle(place.engine, bad, verdict) is Outcome.LOST


async def test_a_lease_that_went_through_a_server_can_be_settled(place: Place) -> None:
    await place.engine.enqueue([a_job("a", payload=b"p")])
    sent = msgspec.msgpack.encode(SentLease.of(await place.one()))
    lease = msgspec.msgpack.decode(sent, type=SentLease).lease()
    (renewed,) = await place.engine.renew([Renewal(lease=lease)])
    assert renewed is not None
    assert await settle(place.engine, lease, Bury()) is Outcome.SETTLED
    (letter,) = await place.letters()
    assert letter.payload == b"p"


def test_a_lease_that_went_through_a_server_stays_in_its_queue() -> None:
    job = Job(id="a", task="t", queue="mine", headers={delivery.HANDLE_HEADER: "h"})
    sent = replace(SentLease.of(Lease(job=job, token=1, lease_ms=5)), queue="other", task="u")
    assert (sent.lease().job.queue, sent.lease().job.task) == ("other", "u")


@pytest.fixture
def unhidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that nobody here may run are visible again at once."""
    monkeypatch.setattr(sqs_lease, "_UNWANTED_S_MAX", 0)


@pytest.mark.usefixtures("unhidden")
@pytest.mark.parametrize("foreign", [False, True])
async def test_a_job_whose_task_the_worker_does_not_know_waits_and_uses_no_attempt(
    place: Place, caplog: pytest.LogCaptureFixture, *, foreign: bool
) -> None:
    await place.engine.declare(a_queue(max_attempts=1))
    if foreign:
        id_ = await place.send("default", "p", colour="red")
    else:
        id_ = "b"
        await place.engine.enqueue([a_job(id_, task="message", payload=b"p", tenant="acme")])
    for _ in range(3):
        await place.engine.enqueue([a_job("a", task="known")])
        known = await all_of(place, tasks=frozenset({"known"}))
        assert [lease.id for lease in known] == ["a"]
        assert await settle(place.engine, known[0], Complete()) is Outcome.SETTLED
    lease = await place.one()
    assert (lease.id, lease.job.attempt, lease.job.task) == (id_, 1, "message")
    assert lease.job.tenant == (None if foreign else "acme")
    assert b"p" in lease.job.payload
    assert (b"red" in lease.job.payload) is foreign
    assert await place.letters() == []
    [warning] = [each.message for each in caplog.records if each.name == "holdfast.sqs"]
    assert "task message, which this worker does not know" in warning


@pytest.mark.usefixtures("unhidden")
async def test_attempts_before_an_unknown_worker_still_count(place: Place) -> None:
    await place.engine.declare(a_queue(max_attempts=2))
    await place.engine.enqueue([a_job("a", task="other")])
    assert await settle(place.engine, await place.one(), Retry(delay_ms=0)) is Outcome.SETTLED
    assert await all_of(place, tasks=frozenset({"known"})) == []
    lease = await place.one()
    assert lease.job.attempt == 2
    assert await settle(place.engine, lease, Retry(delay_ms=0)) is Outcome.SETTLED
    assert await place.lease() == []
    (letter,) = await place.letters()
    assert (letter.reason, letter.attempt) == (Reason.ATTEMPTS, 2)


async def test_an_expired_job_of_an_unknown_task_is_buried(place: Place) -> None:
    await place.engine.enqueue([a_job("a", task="other", expires_ms=1)])
    await asyncio.sleep(0.01)
    assert await all_of(place, tasks=frozenset({"known"})) == []
    (letter,) = await place.letters()
    assert letter.reason is Reason.EXPIRED


@pytest.mark.usefixtures("unhidden")
async def test_a_message_that_cannot_be_sent_again_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.engine.declare(a_queue(max_attempts=5, lease_ms=1_000))
    await place.engine.enqueue([a_job("a", task="other"), a_job("b", task="known")])

    async def fail(*_: Any) -> list[Any]:
        raise EngineUnavailable("gone")

    monkeypatch.setattr(SqsClient, "send", fail)
    known = await all_of(place, tasks=frozenset({"known"}))
    assert [lease.id for lease in known] == ["b"]
    lease = await place.one(wait_ms=10_000, tasks=frozenset({"other"}))
    assert lease.id == "a"


async def all_of(place: Place, **fields: Any) -> list[Lease]:
    """The leases of two calls: a receive may miss messages."""
    return [*await place.lease(**fields), *await place.lease(**fields)]


async def test_a_deleted_queue_is_lost_and_refused(place: Place) -> None:
    await place.engine.enqueue([a_job("a", queue="gone"), a_job("b", queue="gone")])
    first, second = await place.lease(queues=("gone",))
    await place.ask("delete_queue", QueueUrl=place.url("gone"))
    assert await place.engine.renew([Renewal(lease=first)]) == [None]
    assert await settle(place.engine, second, Complete()) is Outcome.LOST
    (receipt,) = await place.engine.enqueue([a_job("c", queue="gone")])
    assert receipt.status is Status.NEW, "create=true creates it anew"


async def test_a_queue_without_dead_letters_loses_nothing(endpoint: str) -> None:
    place = Place(endpoint)
    create_queue(endpoint, f"{place.prefix}default")
    engine = await place.open("create=false")
    await engine.enqueue(jobs("a"))
    lease = await place.one()
    with pytest.raises(EngineUnavailable, match=r"default-dlq.* queue update default"):
        await settle(engine, lease, Bury())
    assert await settle(engine, lease, Release()) is Outcome.SETTLED
    lease = await place.one()
    assert lease.id == "a"
    await change_queue(engine, "default", lambda _: Queue(name="default", max_attempts=10))
    assert await settle(engine, lease, Bury()) is Outcome.SETTLED, "the remedy of the error helps"
    await engine.close()


async def test_a_message_of_a_mebibyte_and_one_byte_more(place: Place) -> None:
    await place.engine.declare(a_queue(payload_max=1_048_576))
    receipts = await place.engine.enqueue(
        [a_job("a", payload=b"x" * 1_048_000), a_job("b", payload=b"x" * 1_048_576), a_job("c")]
    )
    assert [receipt.code for receipt in receipts] == ["", "payload_too_large", ""]
    assert "1048576" in receipts[1].text
    sizes = {lease.id: len(lease.job.payload) for lease in await place.lease(wait_ms=3_000)}
    sizes |= {lease.id: len(lease.job.payload) for lease in await place.lease()}
    assert sizes == {"a": 1_048_000, "c": 2}


async def test_names_at_their_bounds(place: Place) -> None:
    longest = "x" * place.engine.traits.queue_name_max
    assert len(f"{place.prefix}{longest}-dlq") == 80
    assert await place.engine.declare(a_queue(longest))
    with pytest.raises(InvalidQueue, match="the maximum is 80"):
        await place.engine.declare(a_queue(f"{longest}x"))
    (receipt,) = await place.engine.enqueue([a_job(queue=f"{longest}x")])
    assert receipt.code == "invalid_queue"


async def test_a_fifo_queue_keeps_the_order_of_each_group(place: Place) -> None:
    new = [
        a_job(f"{group}{number}", queue="q.fifo", group=group)
        for number in range(3)
        for group in "ab"
    ]
    assert {receipt.status for receipt in await place.engine.enqueue(new)} == {Status.NEW}
    worked: list[str] = []
    while leases := await place.lease(queues=("q.fifo",)):
        assert len({lease.job.group for lease in leases}) == len(leases), "one of each group"
        worked += [lease.id for lease in leases]
        done = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
        assert set(await place.engine.settle(done)) == {Outcome.SETTLED}
    assert [id_ for id_ in worked if id_[0] == "a"] == ["a0", "a1", "a2"]
    assert [id_ for id_ in worked if id_[0] == "b"] == ["b0", "b1", "b2"]


async def test_a_repeated_enqueue_into_a_fifo_queue_adds_nothing(place: Place) -> None:
    for _ in range(2):
        await place.engine.enqueue([a_job(queue="q.fifo", group="g")])
    lease = await place.one(queues=("q.fifo",))
    await settle(place.engine, lease, Complete())
    assert await place.lease(queues=("q.fifo",)) == []


async def test_a_buried_job_of_a_fifo_queue(place: Place) -> None:
    await place.engine.enqueue([a_job(queue="q.fifo", group="g")])
    await settle(place.engine, await place.one(queues=("q.fifo",)), Bury())
    (letter,) = await place.letters("q.fifo")
    assert (letter.group, letter.reason) == ("g", Reason.EXPLICIT)


async def test_groups_and_delays_go_where_sqs_has_them(place: Place) -> None:
    receipts = await place.engine.enqueue(
        [a_job("a", group="g"), a_job("b", queue="q.fifo", delay_ms=1_000)]
    )
    assert [receipt.code for receipt in receipts] == ["unsupported", "unsupported"]
    assert ".fifo" in receipts[0].text


MISSING: dict[str, Callable[[Engine], Any]] = {
    "get": lambda engine: engine.get("a"),
    "find": lambda engine: engine.find(JobFilter(), limit=1),
    "waits": lambda engine: engine.waits("a"),
    "load": lambda engine: engine.load("worker", limit=1),
    "priority": lambda engine: engine.declare(a_queue(aging_ms=5)),
    "limits": lambda engine: engine.declare(a_queue(max_depth=5)),
    "lease": lambda engine: engine.declare(a_queue(lease_ms=43_200_001)),
}


@pytest.mark.parametrize("call", MISSING.values(), ids=MISSING)
async def test_a_missing_ability_is_refused_with_its_remedy(
    place: Place, call: Callable[[Engine], Any]
) -> None:
    with pytest.raises(Unsupported, match=r"the sqs engine does not support .*: "):
        await call(place.engine)


async def test_records_need_a_control_engine(place: Place) -> None:
    with pytest.raises(Unsupported, match="control=URL"):
        await place.engine.load("worker", limit=1)
    with_control = await Place(place.endpoint).open("create=true&control=memory:")
    assert await with_control.load("worker", limit=1) == []
    await with_control.close()


async def test_an_examination_names_queues_that_lose_messages(place: Place) -> None:
    create_queue(place.endpoint, f"{place.prefix}bare")
    examinable = extra(place.engine, Examinable)
    assert examinable is not None
    report = await examinable.examine()
    assert report.versions["boto3"]
    assert [each for each in report.trouble if "default" in each] == []
    assert any("queue bare has no dead-letter queue" in each for each in report.trouble)
