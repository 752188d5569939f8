"""A store for the benchmark `dashboard`: many jobs in many queues, workers, schedules and an hour
of history. The engine enqueues and settles a few jobs of each queue; the store copies them.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.clone import clone_all
from bench.stores import Store, opened
from bench.subject import PAYLOAD
from holdfast import __version__
from holdfast.core import bounds
from holdfast.core.model import Failure, LeaseRequest, NewJob, Queue, Reason
from holdfast.core.verdict import Bury, Complete, Outcome, Settlement
from holdfast.core.workers import WorkerRecord
from holdfast.engines.base import Engine
from holdfast.ops.schedules import SCHEDULES, tick_id
from holdfast.ops.ticks import Schedule
from holdfast.ops.workers import WORKERS
from holdfast.process import wall_ms
from holdfast.telemetry.accounts import ACCOUNTS, Account, FleetTotals
from holdfast.telemetry.meter import QueueTotals, Totals
from holdfast.telemetry.snapshots import SNAPSHOTS, snapshot_key, step_start, take_snapshot

READY, DELAYED, DONE, DEAD = 5, 1, 3, 1
SHARES = READY + DELAYED + DONE + DEAD
"""Jobs of each kind among so many of a queue."""
FLOW = "cycle"
"""A queue without a backlog, for jobs that flow: that of `bench.remote`."""
CAUSES = 20
WORKER_COUNT = 20
SCHEDULE_COUNT = 20
RUNS = 20
MINUTES = 60


def queue_name(number: int) -> str:
    """The name of a queue; ten have a prefix in common."""
    return f"team-{number // 10}.work-{number}"


def job_id(number: int) -> str:
    """The id of a ready job in the queue of this number."""
    return f"ready-{number}-0"


def schedule_name(number: int) -> str:
    """The name of a schedule."""
    return f"schedule-{number}"


async def fill(store: Store, *, jobs: int, queues: int) -> None:
    """Fill an empty store with about as many jobs, evenly in the queues."""
    async with opened(store) as engine:
        names = [queue_name(number) for number in range(queues)]
        for name in (FLOW, *names):
            await engine.declare(Queue(name=name))
        await _enqueue(engine, [job for number in range(queues) for job in _ended(number)])
        for number in range(0, queues, 100):
            await _end(engine, range(number, min(number + 100, queues)))
        await _enqueue(engine, [job for number in range(queues) for job in _waiting(number)])
    await clone_all(store, max(1, jobs // (queues * SHARES)))
    async with opened(store) as engine:
        await _add_records(engine, names)


def _waiting(number: int) -> list[NewJob]:
    ready = [_job(f"ready-{number}-{each}", number) for each in range(READY)]
    delayed = [
        _job(f"delayed-{number}-{each}", number, delay_ms=bounds.DAY_MS) for each in range(DELAYED)
    ]
    return [*ready, *delayed]


def _ended(number: int) -> list[NewJob]:
    done = [_job(f"done-{number}-{each}", number) for each in range(DONE)]
    return [*done, *(_job(f"dead-{number}-{each}", number) for each in range(DEAD))]


def _job(id_: str, number: int, delay_ms: int = 0) -> NewJob:
    return NewJob(
        id=id_,
        task=f"task-{number % 7}",
        queue=queue_name(number),
        payload=PAYLOAD,
        delay_ms=delay_ms,
    )


async def _enqueue(engine: Engine, jobs: Sequence[NewJob]) -> None:
    for start in range(0, len(jobs), bounds.BATCH_MAX):
        await engine.enqueue(jobs[start : start + bounds.BATCH_MAX])


async def _end(engine: Engine, numbers: range) -> None:
    ids = [job.id for number in numbers for job in _ended(number)]
    request = LeaseRequest(ids=tuple(ids), limit=len(ids), worker="worker-0")
    leases = await engine.lease(request)
    settlements = []
    for lease in leases:
        verdict: Complete | Bury = Complete()
        if lease.id.startswith("dead"):
            cause = f"cause {int(lease.id.split('-')[1]) % CAUSES}"
            failure = Failure(type="ValueError", message=cause, trace=f"ValueError: {cause}")
            verdict = Bury(Reason.ATTEMPTS, failure)
        settlements.append(Settlement(lease=lease, verdict=verdict))
    assert len(leases) == len(ids), "some jobs were not leased"
    assert set(await engine.settle(settlements)) == {Outcome.SETTLED}, "a settle was lost"


async def _add_records(engine: Engine, names: Sequence[str]) -> None:
    now = wall_ms()
    workers = [
        WorkerRecord(
            name=f"worker-{number}",
            id=str(number),
            host="host",
            pid=number + 1,
            started_at=now,
            version=__version__,
            queues=dict.fromkeys(names, 1),
            capacity=16,
            running=4,
        )
        for number in range(WORKER_COUNT)
    ]
    await engine.save([WORKERS.record(each.name, each) for each in workers])
    await engine.save([ACCOUNTS.record("worker-0", Account(totals=_totals(names, MINUTES)))])
    views = await engine.queues(names=names)
    for ago in range(MINUTES):
        at = now - ago * bounds.MINUTE_MS
        snapshot = take_snapshot(
            FleetTotals(totals=_totals(names, MINUTES - ago)), views, at, len(names)
        )
        await engine.save([SNAPSHOTS["minute"].record(snapshot_key("minute", at), snapshot)])
    await _add_schedules(engine, names, step_start("minute", now))


async def _add_schedules(engine: Engine, names: Sequence[str], now: int) -> None:
    for number in range(SCHEDULE_COUNT):
        queue = names[number % len(names)]
        schedule = Schedule(
            name=schedule_name(number),
            job=NewJob(id="tick", task="tick", queue=queue),
            every_ms=bounds.MINUTE_MS,
            last_tick=now,
        )
        await engine.save([SCHEDULES.record(schedule.name, schedule)])
        ticks = [now - ago * bounds.MINUTE_MS for ago in range(RUNS)]
        await engine.enqueue(
            [NewJob(id=tick_id(schedule.name, tick), task="tick", queue=queue) for tick in ticks]
        )


def _totals(names: Sequence[str], minutes: int) -> Totals:
    """The counts of a process after so many minutes."""
    totals = Totals()
    for number, name in enumerate(names):
        jobs = minutes * (number % 50 + 1)
        counted = QueueTotals(counts={"enqueued": jobs, "leased": jobs, "completed": jobs})
        counted.waits.add_all([10, 200, 3_000] * minutes)
        counted.runs.add_all([50, 100, 500] * minutes)
        totals.queues[name] = counted
    return totals
