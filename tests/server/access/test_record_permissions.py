"""Records that a token may write, and records that it may not."""

import msgspec
import pytest

from holdfast.core import breaker, workers
from holdfast.core.limits import Limit
from holdfast.core.model import Record
from holdfast.core.workers import WorkerRecord
from holdfast.engines.base import Saved
from holdfast.errors import ConfigError, Forbidden
from holdfast.ops import alerts, queues, redrives, schedules
from holdfast.ops.sqs import SQS_QUEUE_KIND, SQS_QUEUES, SqsQueue, queue_key
from holdfast.server.access.authorized_engine import AuthorizedEngine
from holdfast.telemetry import accounts, event_log, snapshots, watch
from tests.server.samples import caller, store

COUNTED = (
    accounts.ACCOUNT_KIND,
    event_log.EVENTS_KIND,
    watch.WATCH_KIND,
    alerts.ALERT_KIND,
    *snapshots.KINDS.values(),
)


@pytest.mark.parametrize("kind", COUNTED)
@pytest.mark.parametrize("scope", ["consume", "operate", "admin"])
async def test_only_the_server_writes_counters(kind: str, scope: str) -> None:
    """The server counts for workers that use it: they have no counters to write."""
    guarded = AuthorizedEngine(await store(), caller(scope))
    with pytest.raises(Forbidden, match="only the server itself"):
        await guarded.save([Record(kind=kind, key="worker-1", value=b"{}")])
    if scope == "consume":
        with pytest.raises(Forbidden, match='the scope "observe"'):
            await guarded.load(kind, limit=10)


@pytest.mark.parametrize(
    "kind",
    [
        workers.KIND,
        workers.ORDER_KIND,
        breaker.KIND,
        queues.LIMIT_KIND,
        schedules.SCHEDULE_KIND,
        redrives.REDRIVE_KIND,
        queues.DISTRIBUTION_KIND,
    ],
)
@pytest.mark.parametrize("value", [b"", b"garbage", b"[]", b'"x"'])
async def test_records_that_do_not_decode_are_refused(kind: str, value: bytes) -> None:
    guarded = AuthorizedEngine(await store(), caller("admin", "run-commands"))
    with pytest.raises(ConfigError, match=f"the record 'q/x' is not a valid {kind}"):
        await guarded.save([Record(kind=kind, key="q/x", value=value)])


async def test_a_token_cannot_block_workers_of_others() -> None:
    """Each of them reads all limits that tasks have asked for."""
    engine = await store("q")
    guarded = AuthorizedEngine(engine, caller("consume"))
    with pytest.raises(ConfigError):
        await guarded.save([Record(kind=queues.LIMIT_KIND, key="q/x", value=b"garbage")])
    limit = Limit(name="x", task="t", concurrency=1)
    await queues.set_task_limits(guarded, "q", [limit])
    [view] = [view for view in await engine.queues() if view.queue.name == "q"]
    assert view.queue.limits == (limit,)


async def test_a_worker_record_is_stored() -> None:
    guarded = AuthorizedEngine(await store(), caller("consume"))
    itself = WorkerRecord(name="w", id="1", host="h", pid=1, started_at=1)
    record = Record(kind=workers.KIND, key="w", value=msgspec.json.encode(itself))
    assert await guarded.save([record]) == [Saved.SAVED]


@pytest.mark.parametrize("region", ["us-east-1", "eu-west-1"])
async def test_a_prefix_covers_the_name_of_an_sqs_queue_and_its_holdfast_queue(region: str) -> None:
    """Otherwise a token could lead the clients of another queue to its own."""
    engine = await store("team-a", "orders")
    guarded = AuthorizedEngine(engine, caller("operate", prefix="team-"))

    def record(name: str, queue: str) -> Record:
        value = SqsQueue(
            name=name, region=region, queue=queue, epoch=1, created_at=1, modified_at=1
        )
        return SQS_QUEUES.record(queue_key(region, name), value)

    for name, queue in (("orders", "team-a"), ("team-a", "orders"), ("orders", "orders")):
        with pytest.raises(Forbidden, match="outside the prefix"):
            await guarded.save([record(name, queue)])
    assert await engine.load(SQS_QUEUE_KIND, limit=10) == []
    assert await guarded.save([record("team-a", "team-a")]) == [Saved.SAVED]
