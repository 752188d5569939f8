"""Stored records are hostile input: out of bounds they are refused, and if stored they harm nobody
else, are reported, and can be removed."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.model import JobFilter, LeaseRequest, NewJob, Record
from holdfast.core.verdict import Bury, Settlement
from holdfast.core.workers import WorkerRecord
from holdfast.engines.base import Engine, Saved
from holdfast.engines.registry import open_engine
from holdfast.errors import ConfigError, NotFound, UnknownKind, UsageError
from holdfast.ops.doctor import check_store
from holdfast.ops.redrives import RedrivePlan, Redrives, jobs_allowed, redrive_details
from holdfast.ops.schedules import Schedules
from holdfast.ops.status import read_status, status_view
from holdfast.ops.ticks import Schedule, due_ticks
from holdfast.ops.unreadable import find_unreadable, remove_unreadable
from holdfast.ops.workers import WORKERS, Workers, worker_details
from holdfast.server.access.authorized_engine import AuthorizedEngine
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import Redriver, Scheduler
from tests.server.loop_server import ServedEngine
from tests.server.samples import caller, store

MINUTE = 60_000


def schedule(**fields: Any) -> Record:
    value = {"name": "bad", "job": {"id": "-", "task": "t"}, "every_ms": MINUTE, **fields}
    return Record(kind="schedule", key="bad", value=json.dumps(value).encode())


def redrive(plan: dict[str, Any] | None = None, **fields: Any) -> Record:
    value = {"id": "bad", "plan": {"wanted": {}, **(plan or {})}, "total": 1, **fields}
    return Record(kind="redrive", key="bad", value=json.dumps(value).encode())


def worker(**fields: Any) -> Record:
    value = {"name": "bad", "id": "1", "host": "h", "pid": 1, "started_at": 1, **fields}
    return Record(kind="worker", key="bad", value=json.dumps(value).encode())


HOSTILE: dict[str, Record] = {
    "endless ticks": schedule(every_ms=1, missed="all", missed_max=10**12, passed_at=0),
    "no interval": schedule(every_ms=0),
    "no rule": schedule(every_ms=None),
    "no time zone": schedule(every_ms=None, cron="@daily", zone="Mars/Base"),
    "no cron rule": schedule(every_ms=None, cron="x"),
    "a tick after the last year": schedule(passed_at=10**18),
    "another schedule's name": schedule(name="good"),
    "a job that no queue takes": schedule(job={"id": "-", "task": "t", "priority": 10**6}),
    "a rate of 0": redrive({"rate": {"count": 0, "per_ms": 1000}}),
    "a rate per 0": redrive({"rate": {"count": 1, "per_ms": 0}}),
    "a wait of 0": redrive({"canary": True, "canary_wait_ms": 0}),
    "a negative total": redrive(total=-1),
    "a start after the last year": redrive(started_at=10**18),
    "a cursor of no engine": redrive(after=2**63),
    "another redrive's id": redrive(id="good"),
    "a worker of the far future": worker(started_at=10**18),
    "a negative pid": worker(pid=-1),
    "a failure rate over 1": worker(failure_rate=1e300),
    "another worker's name": worker(name="good"),
    "deep nesting": replace(worker(), value=b"[" * 100_000),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_the_server_refuses_to_store_it(name: str) -> None:
    engine = await store()
    guarded = AuthorizedEngine(engine, caller("admin", "run-commands"))
    record = HOSTILE[name]
    with pytest.raises(ConfigError, match=f"the record 'bad' is not a valid {record.kind}"):
        await guarded.save([record])
    assert await engine.load(record.kind, limit=10) == []


async def test_the_remote_engine_cannot_store_it() -> None:
    served = ServedEngine(await store())
    await served.open()
    try:
        for record in HOSTILE.values():
            with pytest.raises(ConfigError, match="is not a valid"):
                await served.save([record])
            assert await served.load(record.kind, limit=10) == []
    finally:
        await served.close()


@pytest.fixture(params=["direct", "remote"])
async def reader(request: pytest.FixtureRequest, engine: Engine) -> AsyncIterator[Engine]:
    """The engine, and the same through a server."""
    if request.param == "direct":
        yield engine
        return
    served = ServedEngine(engine)
    await served.open()
    yield served
    await served.close()


async def put(engine: Engine, record: Record) -> None:
    assert await engine.save([record]) == [Saved.SAVED]


async def die(engine: Engine, id: str) -> None:
    await engine.enqueue([NewJob(id=id, task="t")])
    [lease] = await engine.lease(LeaseRequest(ids=(id,)))
    await engine.settle([Settlement(lease=lease, verdict=Bury())])


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("url", ["memory"], indirect=True)
async def test_it_harms_nobody_else(
    name: str, reader: Engine, engine: Engine, clock: ManualClock
) -> None:
    await put(engine, HOSTILE[name])
    await check_neighbours(reader, engine, clock)


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
async def test_it_harms_nobody_else_on_a_database(engine: Engine, clock: ManualClock) -> None:
    for name in ("endless ticks", "a rate of 0", "a worker of the far future"):
        await put(engine, HOSTILE[name])
    await check_neighbours(engine, engine, clock)


async def test_it_harms_nobody_else_on_partitions(tmp_path: Path, clock: ManualClock) -> None:
    files = ",".join(f"sqlite:///{tmp_path}/{name}.db" for name in "abc")
    engine = open_engine(f"partitioned:{files}", clock=clock)
    await engine.open()
    try:
        for record in HOSTILE.values():
            await engine.save([record])
        await check_neighbours(engine, engine, clock)
    finally:
        await engine.close()


async def check_neighbours(reader: Engine, engine: Engine, clock: ManualClock) -> None:
    """A schedule ticks, a redrive ends, and a worker is seen; the bad records are named and
    removed."""
    redrive_id = await check_upkeep(reader, engine, clock)
    good = WorkerRecord(name="good", id="1", host="h", pid=1, started_at=1)
    await WORKERS.create(engine, "good", good)
    assert [worker_details(each).name for each in await Workers(reader).all()] == ["good"]
    assert [each.name for each in await Schedules(reader, clock.wall_ms).all()] == ["good"]
    views = await Redrives(reader, clock.wall_ms).all()
    assert [redrive_details(each).id for each in views] == [redrive_id]
    assert msgspec.json.encode(status_view(await read_status(reader)))

    bad = await find_unreadable(reader)
    assert bad
    findings = [each for each in await check_store(reader) if each.name == "record"]
    assert [each.command for each in findings] == [
        f"record remove {kind} {key}" for kind, key, _ in bad
    ]
    for kind, key, _ in bad:
        await remove_unreadable(reader, kind, key)
    assert await find_unreadable(reader) == []


async def check_upkeep(reader: Engine, engine: Engine, clock: ManualClock) -> str:
    """A good schedule ticks, and a good redrive ends; its id."""
    await die(engine, "dead")
    job = NewJob(id="-", task="ticked")
    await Schedules(engine, clock.wall_ms).add(Schedule(name="good", job=job, every_ms=MINUTE))
    redrives = Redrives(reader, clock.wall_ms)
    started = await redrives.start(RedrivePlan(wanted=JobFilter()))
    clock.advance(MINUTE)
    await Scheduler(reader, clock.wall_ms).once()
    redriver = Redriver(reader, clock.wall_ms)
    while (view := await redrives.get(started.id)) is not None and not view.redrive.state.ended:
        await redriver.once()
    found = (await engine.find(JobFilter(task="ticked"), limit=10)).jobs
    assert len(found) == 1
    assert view is not None
    assert view.redrive.retried == 1
    return started.id


async def test_only_unreadable_records_are_removed(clock: ManualClock) -> None:
    engine = await store()
    job = NewJob(id="-", task="t")
    await Schedules(engine, clock.wall_ms).add(Schedule(name="good", job=job, every_ms=MINUTE))
    with pytest.raises(UsageError, match="can be read, and only unreadable records are removed"):
        await remove_unreadable(engine, "schedule", "good")
    with pytest.raises(NotFound, match='there is no schedule record "bad"'):
        await remove_unreadable(engine, "schedule", "bad")
    with pytest.raises(UnknownKind, match=r"unknown record kind 'shedule': use one of .*schedule"):
        await remove_unreadable(engine, "shedule", "bad")


async def test_an_unexpected_error_harms_nobody_else(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Values that the bounds do not foresee."""

    def fail_on_bad(rule: Callable[..., Any]) -> Callable[..., Any]:
        def checked(record: Any, *more: Any) -> Any:
            if "bad" in (getattr(record, "name", ""), getattr(record, "id", "")):
                raise ZeroDivisionError("bad luck")
            return rule(record, *more)

        return checked

    monkeypatch.setattr("holdfast.upkeep.scheduler.due_ticks", fail_on_bad(due_ticks))
    monkeypatch.setattr("holdfast.upkeep.redriver.jobs_allowed", fail_on_bad(jobs_allowed))
    engine = await store()
    await put(engine, schedule())
    await put(engine, redrive())
    await check_upkeep(engine, engine, clock)
    skipped = [each.getMessage() for each in caplog.records if "is skipped" in each.getMessage()]
    assert "schedule bad is skipped: ZeroDivisionError('bad luck')" in skipped
    assert "redrive bad is skipped: ZeroDivisionError('bad luck')" in skipped


async def test_a_skipped_record_is_logged_once(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await store()
    await put(engine, HOSTILE["no interval"])
    await put(engine, HOSTILE["a rate of 0"])
    scheduler, redriver = Scheduler(engine, clock.wall_ms), Redriver(engine, clock.wall_ms)
    for _ in range(3):
        await scheduler.once()
        await redriver.once()
    logged = [each.getMessage().partition(":")[0] for each in caplog.records]
    assert logged == ["schedule bad is skipped", "redrive bad is skipped"]
    await put(engine, replace(HOSTILE["no interval"], version=1))
    await scheduler.once()
    assert len(caplog.records) == 3
