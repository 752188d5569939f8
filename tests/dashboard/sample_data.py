"""Fills a store with something to look at: half an hour of history, then a job in every state.

The history is written with a clock that the test moves, the present with the real one.
"""

import time
import traceback
from typing import Any

import msgspec

from holdfast.app.application import Holdfast
from holdfast.core import bounds, breaker
from holdfast.core.breaker import BreakerRecord
from holdfast.core.model import Failure, FailureKind, Lease, NewJob, Note, Reason, Record, Renewal
from holdfast.core.verdict import Bury, Complete, Retry, Settlement, Verdict
from holdfast.core.workers import KIND as WORKER_KIND
from holdfast.core.workers import WorkerRecord
from holdfast.engines.registry import open_engine
from holdfast.ops.audit import Audit, AuditEntry
from holdfast.ops.gates import GATES, Gate
from holdfast.ops.quotas import Allowance, Quota, Quotas
from holdfast.ops.ticks import Schedule
from holdfast.process import wall_ms
from holdfast.telemetry import Meter, Retention
from holdfast.telemetry.accounts import Flusher
from holdfast.telemetry.snapshots import Roller
from holdfast.testing.clock import ManualClock

MINUTES = 30
QUEUES = ("mail.welcome", "mail.digest", "media.videos", "shop.orders", "shop.payments", "crm")
UNSERVED, PAUSED = "billing.export", "mail.campaign"
WORKERS = ("worker-1", "worker-2")
# One job in each state, to be opened by its id.
READY, DELAYED, BLOCKED, RUNNING, DONE = "ready-1", "delayed-1", "blocked-1", "running-1", "done-1"
RETRIED, DEAD, CANCELLED, LIMITED, CHILD = "retried-1", "dead-1", "gone-1", "limited-1", "child-1"
DECLINED = "card declined: insufficient funds"


async def fill(url: str) -> None:
    """Fill an empty store."""
    await _past(url)
    async with Holdfast(url) as app:
        await _queues(app)
        await _workers(app)
        await _dead_letters(app)
        await _waiting(app)
        await _running(app)
        await _ended(app)
        await _administration(app)


async def _past(url: str) -> None:
    # Whole minutes: the rates of a part of one would be high.
    minute = time.time_ns() // 1_000_000 // bounds.MINUTE_MS
    clock = ManualClock(wall_ms=(minute - MINUTES) * bounds.MINUTE_MS)
    engine = open_engine(url, clock=clock)
    app = Holdfast(engine=engine)
    meter = Meter(clock.wall_ms)
    app.listeners.add(meter.record)
    async with app:
        flusher = Flusher(app.engine, meter, "worker", clock.wall_ms)
        roller = Roller(app.engine, clock.wall_ms, retention=Retention())
        for queue in QUEUES:
            await app.declare(queue)
        for minute in range(MINUTES):
            busy = 8 + minute // 4 + (minute * 7) % 5
            jobs = [
                app.job("mail.send", {"to": f"u{n}@example.org"}, queue=QUEUES[n % 2])
                for n in range(busy)
            ]
            await app.enqueue_many(jobs)
            clock.advance(1_000 + 300 * (minute % 4))
            taken = await app.lease(*QUEUES[:2], limit=100, worker=WORKERS[minute % 2])
            clock.advance(2_000)
            retry = Retry(1_000, failed("smtp.example.org closed the connection"))
            # The last minutes end all of them.
            fails = minute % 3 if minute < MINUTES - 2 else 0
            done = [_settled(lease, Complete(b'"sent"')) for lease in taken[fails:]]
            await app.settle([*done, *(_settled(lease, retry) for lease in taken[:fails])])
            await flusher.flush(last=minute == MINUTES - 1)
            await roller.once()
            clock.advance(bounds.MINUTE_MS - clock.wall_ms() % bounds.MINUTE_MS)


async def _queues(app: Holdfast) -> None:
    await app.declare("shop.orders", fairness="shares", weights={"acme": 3})
    await app.declare(UNSERVED)
    await app.declare(PAUSED, paused=True)
    await app.limit("shop.payments", "payment-provider", concurrency=1)
    digest = app.job("mail.send", {"to": "all@example.org"}, queue="mail.digest")
    every = Schedule(name="digest", job=digest, every_ms=bounds.HOUR_MS)
    nightly = Schedule(name="nightly", job=digest, cron="30 2 * * *", zone="Europe/Berlin")
    for schedule in (every, nightly, msgspec.structs.replace(nightly, name="off", paused=True)):
        await app.schedules.add(schedule)


async def _workers(app: Holdfast) -> None:
    served: dict[str, Any] = {
        "host": "host-1",
        "pid": 7,
        "started_at": 1,
        "version": "0.1.0",
        "queues": dict.fromkeys(QUEUES, 1),
        "tasks": ("mail.send", "shop.charge"),
        "capacity": 16,
    }
    records = [
        WorkerRecord(name=WORKERS[0], id="1", **served, running=2, done=1_234, failed=17),
        WorkerRecord(name=WORKERS[1], id="2", **served, failure_rate=0.4, failed=40, done=60),
        WorkerRecord(name="worker-3", id="3", **served, cordoned=True),
    ]
    saved = [
        Record(kind=WORKER_KIND, key=each.name, value=msgspec.json.encode(each)) for each in records
    ]
    opened = breaker.opened_by(BreakerRecord(last="crm.example.org: 503"), "ana")
    saved.append(
        Record(
            kind=breaker.KIND,
            key=f"{breaker.TASK_PREFIX}crm.sync",
            value=msgspec.json.encode(opened),
        )
    )
    await app.engine.save(saved)


async def _dead_letters(app: Holdfast) -> None:
    for number in range(12):
        id_ = DEAD if number == 0 else f"dead-{number + 1}"
        await _end(app, _charge(app, id_, number), Bury(Reason.EXPLICIT, failed(DECLINED)))
    for number in range(5):
        job = app.job("shop.invoice", {"order": number}, queue="shop.orders", tenant="globex")
        failure = failed("'country'", "KeyError", trace=_trace())
        await _end(app, job, Bury(Reason.ATTEMPTS, failure))
    late = Failure(kind=FailureKind.TIMEOUT, message="it ran for longer than 5 s")
    await _end(app, app.job("crm.sync", {}, queue="crm"), Bury(Reason.ATTEMPTS, late))


async def _waiting(app: Holdfast) -> None:
    many = [
        app.job("shop.import", {"rows": number}, queue="shop.orders", tenant="acme")
        for number in range(40)
    ]
    jobs = [
        app.job("billing.export", {"month": "2026-10"}, id=READY, queue=UNSERVED),
        app.job("mail.send", {"to": "a@example.org"}, queue=PAUSED),
        app.job("mail.send", {"to": "b@example.org"}, id=DELAYED, queue="crm", delay="10m"),
        app.job("mail.send", {"to": "c@example.org"}, id=BLOCKED, queue="crm", after=[DELAYED]),
        app.job("mail.send", {"to": "d@example.org"}, id=CANCELLED, queue="mail.digest"),
    ]
    await app.enqueue_many([*many, *jobs])
    await app.cancel(CANCELLED, by="ana", text="sent by hand")
    retry = Retry(10 * bounds.MINUTE_MS, failed("smtp.example.org closed the connection"))
    job = app.job("mail.send", {"to": "e@example.org"}, id=RETRIED, queue="mail.welcome")
    await _end(app, job, retry)


async def _running(app: Holdfast) -> None:
    """Leases that outlast the test."""
    video = app.job("media.transcode", {"video": "talk.mov"}, id=RUNNING, queue="media.videos")
    await app.enqueue_many([video])
    [lease] = await app.lease("media.videos", lease="1h", worker=WORKERS[0])
    note = Note(progress=0.42, output=b"frame=240 fps=24\nframe=480 fps=24\n")
    await app.renew_many([Renewal(lease=lease, lease_ms=bounds.HOUR_MS, note=note)])
    await app.enqueue_many([_charge(app, "charging-1", 100), _charge(app, LIMITED, 101)])
    await app.lease("shop.payments", lease="1h", worker=WORKERS[0])


async def _ended(app: Holdfast) -> None:
    job = app.job("mail.send", {"to": "f@example.org"}, id=DONE, queue="mail.welcome")
    then = app.job("crm.sync", {"contact": 1}, id=CHILD, queue="mail.digest")
    note = Note(output=b"250 2.0.0 OK\n")
    await _end(app, job, Complete(b'{"sent": true}', (then,)), note)


async def _administration(app: Holdfast) -> None:
    """A gate, quotas, and what operators did in the last minutes."""
    gate = Gate(
        name="orders",
        direction="inlet",
        broker="main",
        queue="shop.orders",
        source="orders.new",
        task="shop.import",
        paused=True,
    )
    value = msgspec.json.encode(gate)
    await app.engine.save([Record(kind=GATES.name, key=gate.name, value=value)])
    quotas = Quotas(lambda: app.engine)
    await quotas.put("namespace", Quota(depth=50_000))
    await quotas.put("tenant:*", Quota(depth=1_000, rate=Allowance(count=5_000, per_ms=60_000)))
    audit = Audit(lambda: app.engine, wall_ms)
    acts = (
        ("queue.declare", f"{PAUSED} paused=True; reason: the list has wrong names", "done"),
        ("jobs.redrive", "queue=shop.orders states=dead", "done"),
        ("breaker.save", "task:crm.sync", "done"),
        ("queue.drop", "shop.orders", "forbidden"),
    )
    for minutes, (what, on, outcome) in enumerate(reversed(acts), 1):
        at = wall_ms() - minutes * bounds.MINUTE_MS
        entry = AuditEntry(at=at, who="ana", what=what, on=on, peer="10.0.0.7", outcome=outcome)
        await audit.note_once(entry, on)


def failed(message: str, kind: str = "RuntimeError", trace: str = "") -> Failure:
    return Failure(type=kind, message=message, trace=trace)


def _charge(app: Holdfast, id_: str, number: int) -> NewJob:
    return app.job(
        "shop.charge",
        {"cents": 9_000 + number, "card": {"last4": "4242"}},
        id=id_,
        queue="shop.payments",
        tenant=("acme", "globex", "initech")[number % 3],
        labels={"region": "eu", "order": f"A-{number:05}"},
    )


async def _end(app: Holdfast, job: NewJob, verdict: Verdict, note: Note | None = None) -> None:
    await app.enqueue_many([job])
    [lease] = await app.lease(job.queue, worker=WORKERS[0], tasks=[job.task])
    assert lease.id == job.id
    await app.settle([_settled(lease, verdict, note)])


def _settled(lease: Lease, verdict: Verdict, note: Note | None = None) -> Settlement:
    return Settlement(lease=lease, verdict=verdict, note=note)


def _trace() -> str:
    def tax(order: dict[str, str]) -> str:
        return order["country"]

    try:
        return tax({})
    except KeyError:
        return traceback.format_exc()
