"""The reconciler: retention, purges, pending attributes, dead-letter queues and old records."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.model import JobFilter, LeaseRequest, NewJob, Queue, Reason, Record, State
from holdfast.core.verdict import Bury, Settlement
from holdfast.ops.queues import find_queue
from holdfast.ops.sqs import SQS_QUEUES, SqsQueue
from holdfast.server.sqs import queues as queue_actions
from holdfast.server.sqs import reconciler as reconciler_module
from holdfast.server.sqs.reconciler import QueueReconciler
from tests.server.sqs.sqs_client import ACCOUNT, SqsClient

KEY = "us-east-1/orders"
POLICY = json.dumps(
    {"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead", "maxReceiveCount": 3}
)
HOUR_MS = 3_600_000


def reconciler_of(sqs: SqsClient) -> QueueReconciler:
    app = sqs.server.apps["default"]

    async def catalog() -> Any:
        return await sqs.endpoint.state.catalog("default", app)

    return QueueReconciler(lambda: sqs.store, catalog, monotonic_ms=sqs.clock.boot_ms)


async def left(sqs: SqsClient, queue: str = "orders") -> list[str]:
    page = await sqs.store.find(JobFilter(queue=queue), limit=1_000)
    return sorted(job.payload.decode() for job in page.jobs)


async def settings_of(sqs: SqsClient, name: str) -> Queue:
    view = await find_queue(sqs.store, name)
    assert view is not None
    return view.queue


async def record_of(sqs: SqsClient, key: str = KEY) -> SqsQueue | None:
    stored = await SQS_QUEUES.read(sqs.store, key)
    return None if stored is None else stored.value


async def send(sqs: SqsClient, url: str, body: str, **members: Any) -> None:
    await sqs.ask("SendMessage", QueueUrl=url, MessageBody=body, **members)


async def test_messages_are_deleted_by_age(sqs: SqsClient) -> None:
    url = await sqs.create("orders", MessageRetentionPeriod="3600")
    reconciler = reconciler_of(sqs)
    await send(sqs, url, "old")
    await send(sqs, url, "delayed", DelaySeconds=900)
    sqs.clock.advance(HOUR_MS // 2)
    await send(sqs, url, "new")
    await reconciler.once()
    assert await left(sqs) == ["delayed", "new", "old"]
    sqs.clock.advance(HOUR_MS // 2 + 1)
    await reconciler.once()
    assert await left(sqs) == ["new"]


async def test_a_wrong_clock_of_the_server_deletes_nothing(sqs: SqsClient) -> None:
    """PostgreSQL stamps messages with its own clock."""
    url = await sqs.create("orders", MessageRetentionPeriod="60")
    await send(sqs, url, "new")
    sqs.endpoint.state.wall_ms = lambda: sqs.clock.wall_ms() + 1_000 * HOUR_MS
    app = sqs.server.apps["default"]
    for service in sqs.endpoint.services("default", app):
        await service.once()
    assert await left(sqs) == ["new"]


@pytest.mark.parametrize("is_interrupted", [False, True])
async def test_a_purge_leaves_dead_letters_that_clients_do_not_see(
    sqs: SqsClient, monkeypatch: pytest.MonkeyPatch, *, is_interrupted: bool
) -> None:
    await sqs.store.declare(Queue(name="native"))
    await sqs.store.enqueue(
        [NewJob(id=each, task="t", queue="native", payload=each.encode()) for each in "ab"]
    )
    [lease] = await sqs.store.lease(LeaseRequest(queues=("native",), limit=1, worker="w"))
    await sqs.store.settle([Settlement(lease=lease, verdict=Bury(Reason.REJECTED))])
    if is_interrupted:
        monkeypatch.setattr(queue_actions, "_PURGE_S", -1.0)
    sqs.clock.advance(1)
    await sqs.ask("PurgeQueue", QueueUrl="native")
    await reconciler_of(sqs).once()
    [job] = (await sqs.store.find(JobFilter(queue="native"), limit=9)).jobs
    assert (job.id, job.state) == (lease.id, State.DEAD)


async def test_retention_follows_a_changed_attribute(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    reconciler = reconciler_of(sqs)
    await send(sqs, url, "x")
    sqs.clock.advance(61_000)
    await reconciler.once()
    assert await left(sqs) == ["x"]
    await sqs.ask("SetQueueAttributes", QueueUrl=url, Attributes={"MessageRetentionPeriod": "60"})
    await reconciler.once()
    assert await left(sqs) == []


async def test_retention_ends_no_lease(sqs: SqsClient) -> None:
    url = await sqs.create("orders", MessageRetentionPeriod="60", VisibilityTimeout="600")
    await send(sqs, url, "held")
    await sqs.ask("ReceiveMessage", QueueUrl=url)
    sqs.clock.advance(120_000)
    await reconciler_of(sqs).once()
    assert await left(sqs) == ["held"]


async def test_dead_letters_keep_the_time_when_they_were_sent(sqs: SqsClient) -> None:
    await sqs.create("dead", MessageRetentionPeriod="3600")
    policy = json.dumps({**json.loads(POLICY), "maxReceiveCount": 1})
    url = await sqs.create("orders", RedrivePolicy=policy, VisibilityTimeout="0")
    await send(sqs, url, "x")
    sqs.clock.advance(HOUR_MS - 1_000)
    for _ in range(2):
        await sqs.ask("ReceiveMessage", QueueUrl=url)
    reconciler = reconciler_of(sqs)
    await reconciler.once()
    [job] = (await sqs.store.find(JobFilter(queue="dead"), limit=9)).jobs
    assert job.state is State.DEAD
    sqs.clock.advance(HOUR_MS // 10)
    await reconciler.once()
    assert await left(sqs, "dead") == []


async def test_jobs_of_other_programs_are_kept(sqs: SqsClient) -> None:
    await sqs.store.declare(Queue(name="orders"))
    await sqs.store.enqueue([NewJob(id="1", task="t", queue="orders", payload=b"x")])
    await sqs.ask("TagQueue", QueueUrl=f"/{ACCOUNT}/orders", Tags={"a": "b"})
    sqs.clock.advance(100 * 24 * HOUR_MS)
    await reconciler_of(sqs).once()
    assert await left(sqs) == ["x"]


async def test_more_than_one_step_of_old_messages_is_deleted(
    sqs: SqsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler_module, "SWEEP_STEP", 10)
    await sqs.create("orders", MessageRetentionPeriod="60")
    await sqs.store.enqueue([NewJob(id=str(n), task="t", queue="orders") for n in range(105)])
    sqs.clock.advance(61_000)
    reconciler = reconciler_of(sqs)
    assert await reconciler.once() == 0
    assert len(await left(sqs)) == 5
    await reconciler.once()
    assert await left(sqs) == []


async def test_a_long_purge_is_continued(sqs: SqsClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is killed has deleted only a part. Later messages stay."""
    url = await sqs.create("orders")
    await sqs.store.enqueue([NewJob(id=str(n), task="t", queue="orders") for n in range(25)])
    sqs.clock.advance(1_000)
    monkeypatch.setattr(queue_actions, "_PURGE_S", 0.0)
    monkeypatch.setattr(queue_actions, "PURGE_STEP", 10)
    monkeypatch.setattr(reconciler_module, "PURGE_STEP", 10)
    await sqs.ask("PurgeQueue", QueueUrl=url)
    assert len(await left(sqs)) == 25
    sqs.clock.advance(1_000)
    await send(sqs, url, "later")
    reconciler = reconciler_of(sqs)
    await reconciler.once()
    await reconciler.once()
    assert await left(sqs) == ["later"]
    record = await record_of(sqs)
    assert record is not None
    assert not record.purging


async def test_pending_attributes_are_applied_after_a_crash(
    sqs: SqsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await sqs.create("orders")

    async def die(*_: Any) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(queue_actions, "apply_settings", die)
        members = {"QueueUrl": url, "Attributes": {"VisibilityTimeout": "99"}}
        reply = await sqs.send("SetQueueAttributes", json.dumps(members).encode())
        assert reply.status == 500
    assert (await settings_of(sqs, "orders")).lease_ms == 30_000
    reconciler = reconciler_of(sqs)
    await reconciler.once()
    assert (await settings_of(sqs, "orders")).lease_ms == 30_000
    sqs.clock.advance(reconciler_module.PENDING_MS + 1)
    await reconciler.once()
    assert (await settings_of(sqs, "orders")).lease_ms == 99_000
    assert (await sqs.attributes(url))["VisibilityTimeout"] == "99"


async def test_a_dead_letter_queue_that_comes_back_is_used_again(sqs: SqsClient) -> None:
    dead = await sqs.create("dead")
    await sqs.create("orders", RedrivePolicy=POLICY)
    reconciler = reconciler_of(sqs)
    # Another program drops it.
    await sqs.store.drop("dead")
    await reconciler.once()
    queue = await settings_of(sqs, "orders")
    assert (queue.dead_queue, queue.max_attempts) == (None, 0)
    assert await sqs.create("dead") == dead
    sqs.clock.advance(10_000)
    await reconciler.once()
    queue = await settings_of(sqs, "orders")
    assert (queue.dead_queue, queue.max_attempts) == ("dead", 4)


async def test_a_dead_queue_that_an_operator_chose_stays(sqs: SqsClient) -> None:
    await sqs.create("dead")
    await sqs.create("orders", RedrivePolicy=POLICY)
    await sqs.store.declare(Queue(name="graves"))
    queue = replace(await settings_of(sqs, "orders"), dead_queue="graves")
    await sqs.store.declare(queue)
    await reconciler_of(sqs).once()
    assert await settings_of(sqs, "orders") == queue


async def test_records_of_queues_that_are_gone_are_removed(sqs: SqsClient) -> None:
    url = await sqs.create("orders")
    await sqs.create("dropped")
    await sqs.ask("DeleteQueue", QueueUrl=url)
    await sqs.store.drop("dropped")
    reconciler = reconciler_of(sqs)
    await reconciler.once()
    assert await record_of(sqs) is not None
    sqs.clock.advance(reconciler_module.DELETED_MS + 1)
    await reconciler.once()
    assert await record_of(sqs) is None
    assert await record_of(sqs, "us-east-1/dropped") is not None
    sqs.clock.advance(reconciler_module.ORPHANED_MS)
    await reconciler.once()
    assert await record_of(sqs, "us-east-1/dropped") is None


async def test_an_unreadable_record_does_not_hold_up_the_others(sqs: SqsClient) -> None:
    url = await sqs.create("orders", MessageRetentionPeriod="60")
    await sqs.store.save([Record(kind="sqs-queue", key="a", value=b"{")])
    await send(sqs, url, "x")
    sqs.clock.advance(61_000)
    await reconciler_of(sqs).once()
    assert await left(sqs) == []
