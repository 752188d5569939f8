"""What a token may write of the records that others read, and what it may not."""

import msgspec
import pytest

from holdfast import alerts, limiting
from holdfast.core import breaker, workers
from holdfast.core.flow import Limit
from holdfast.core.model import Record
from holdfast.core.workers import WorkerRecord
from holdfast.engines.base import Saved
from holdfast.errors import Forbidden
from holdfast.server.guarded import Guarded
from holdfast.telemetry import accounts, notable, snapshots, watching
from holdfast.upkeep import distributions, redrives, schedules
from tests.server.callers import caller, store

COUNTED = (
    accounts.KIND,
    notable.KIND,
    watching.STATE_KIND,
    alerts.KIND,
    *snapshots.KINDS.values(),
)


@pytest.mark.parametrize("kind", COUNTED)
@pytest.mark.parametrize("scope", ["consume", "operate", "admin"])
async def test_what_is_counted_is_written_by_the_server_alone(kind: str, scope: str) -> None:
    """What workers do through a server is counted there: none of them has anything to add."""
    guarded = Guarded(await store(), caller(scope))
    with pytest.raises(Forbidden, match="of the server itself"):
        await guarded.save([Record(kind=kind, key="worker-1", value=b"{}")])
    if scope == "consume":
        with pytest.raises(Forbidden, match="the scope operate"):
            await guarded.load(kind, limit=10)


@pytest.mark.parametrize(
    "kind",
    [
        workers.KIND,
        workers.ORDER_KIND,
        breaker.KIND,
        limiting.LIMIT_KIND,
        schedules.RECORD_KIND,
        redrives.RECORD_KIND,
        distributions.RECORD_KIND,
    ],
)
@pytest.mark.parametrize("value", [b"", b"garbage", b"[]", b'"x"'])
async def test_what_nobody_can_read_is_not_kept(kind: str, value: bytes) -> None:
    guarded = Guarded(await store(), caller("admin", "run-commands"))
    with pytest.raises(Forbidden, match=f"the record 'q/x' is no {kind}"):
        await guarded.save([Record(kind=kind, key="q/x", value=value)])


async def test_one_token_cannot_keep_the_workers_of_others_from_starting() -> None:
    """Each of them reads all limits that tasks have asked for."""
    engine = await store("q")
    guarded = Guarded(engine, caller("consume"))
    with pytest.raises(Forbidden):
        await guarded.save([Record(kind=limiting.LIMIT_KIND, key="q/x", value=b"garbage")])
    limit = Limit(name="x", task="t", concurrency=1)
    await limiting.set_task_limits(guarded, "q", [limit])
    [view] = [view for view in await engine.queues() if view.queue.name == "q"]
    assert view.queue.limits == (limit,)


async def test_what_a_worker_says_of_itself_is_kept() -> None:
    guarded = Guarded(await store(), caller("consume"))
    itself = WorkerRecord(name="w", id="1", host="h", pid=1, started_at=1)
    record = Record(kind=workers.KIND, key="w", value=msgspec.json.encode(itself))
    assert await guarded.save([record]) == [Saved.SAVED]
