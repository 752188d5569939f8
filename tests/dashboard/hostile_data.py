"""Fills a store with text that attacks the page: markup, direction overrides, control bytes and
numbers that JavaScript cannot hold, and far more of everything than any program should write.

The bounds of the library are lifted while it is written, because other programs can write to a
store, too.
"""

from contextlib import ExitStack
from unittest import mock

import msgspec

from holdfast.app.application import Holdfast
from holdfast.core import bounds, breaker
from holdfast.core.breaker import BreakerRecord
from holdfast.core.model import JobFilter, Note, Reason, Record, Renewal, State
from holdfast.core.verdict import Bury, Complete, Retry, Settlement
from holdfast.core.workers import WorkerRecord
from holdfast.ops.audit import Audit, AuditEntry
from holdfast.ops.breakers import BREAKERS
from holdfast.ops.gates import GATE_RUNS, GATES, Gate, GateRun, GateState
from holdfast.ops.queues import PAUSES, Pause
from holdfast.ops.quotas import Quota, Quotas
from holdfast.ops.redrives import RedrivePlan
from holdfast.ops.ticks import Schedule
from holdfast.ops.workers import WORKERS
from holdfast.process import wall_ms
from tests.dashboard import sample_data

MARKUP = "<img src=x onerror=alert(1)>"
OVERRIDE = "\u202egnp.exe"
TEXT = f"{MARKUP}<script>alert(2)</script>{OVERRIDE} \x1b[31m\x07\x7f \u2066 '\"`${{alert(3)}}&lt;"
"""Fits in a name, and ends with what closes attributes and templates."""
PLAIN = TEXT.partition("'")[0]
"""Without what a template would replace."""
LONG = "W" * 76
QUEUE = f"own-{LONG}"
TASK = f"task.{LONG}{LONG}"
DEAD, RUNNING, WAITING, DONE, CRASHED = (
    f"{kind}-{LONG}" for kind in ("dead", "running", "waiting", "done", "crashed")
)
WORKER = f"{TEXT[:60]}"
SCHEDULE = f"schedule.{LONG[:60]}"
GATE = f"gate.{LONG[:35]}"
EXACT = 2**64 + 1
COUNT = bounds.COUNT_MAX


async def fill(url: str, *, labels: int, error_bytes: int) -> None:
    """Fill an empty store."""
    with ExitStack() as lifted:
        for name in ("PAIRS_MAX", "EXTRA_BYTES_MAX", "PAIR_VALUE_BYTES_MAX", "RECORD_MAX"):
            lifted.enter_context(mock.patch.object(bounds, name, 10**9))
        lifted.enter_context(mock.patch("holdfast.core.checks.clean_text", _as_it_is))
        async with Holdfast(url) as app:
            await _jobs(app, labels, error_bytes)
            await _records(app, labels)


def _as_it_is(text: str, most: int = 0) -> str:
    return text


async def _jobs(app: Holdfast, labels: int, error_bytes: int) -> None:
    await app.declare(QUEUE, fairness="shares", weights={TEXT: 3})
    await app.limit(QUEUE, "limit", concurrency=5)
    payload = {
        TEXT: TEXT,
        "exact": EXACT,
        "__proto__": {"polluted": True},
        "many": list(range(5_000)),
        "long": "x" * 50_000,
        "deep": _deep(200),
    }
    many = {f"{TEXT[:40]}-{number}": TEXT for number in range(labels)}
    jobs = [
        app.job(
            TASK, payload, id=id_, queue=QUEUE, tenant=TEXT, key=f"{TEXT[:90]}-{n}", labels=many
        )
        for n, id_ in enumerate((DEAD, RUNNING, DONE, CRASHED))
    ]
    await app.enqueue_many(jobs)
    leases = {each.id: each for each in await app.lease(QUEUE, limit=4, lease="1h", worker=WORKER)}
    trace = f'Traceback\n  File "/{TEXT}.py", line {EXACT}, in {TEXT}\n    {TEXT}\n' * 300
    failure = sample_data.failed(TEXT + "e" * error_bytes + TEXT, TEXT, trace=trace)
    output = Note(output=TEXT.encode() + b"\xff\x00\x1b[2J\r" + b"y" * 100_000)
    await app.renew_many([Renewal(lease=leases[RUNNING], lease_ms=bounds.HOUR_MS, note=output)])
    done = Complete(msgspec.json.encode({TEXT: EXACT}))
    await app.settle([
        Settlement(lease=leases[DEAD], verdict=Bury(Reason.ATTEMPTS, failure)),
        Settlement(lease=leases[DONE], verdict=done, note=output),
        Settlement(lease=leases[CRASHED], verdict=Bury(Reason.CRASHED, failure), note=output),
    ])  # fmt: skip
    last = app.job(TASK, TEXT, id=WAITING, queue=QUEUE, tenant=TEXT, after=[RUNNING])
    await app.enqueue_many([last])
    # The same is retried and cancelled, with a reason.
    again = app.job(TASK, b"\xff\x00" + TEXT.encode(), queue=QUEUE, content_type="application/x")
    await app.enqueue_many([again])
    [lease] = await app.lease(QUEUE, worker=WORKER)
    await app.settle([Settlement(lease=lease, verdict=Retry(1, failure))])
    await app.cancel(lease.id, by=TEXT, text=TEXT)


def _deep(levels: int) -> object:
    found: object = TEXT
    for _ in range(levels):
        found = [found]
    return found


async def _records(app: Holdfast, labels: int) -> None:
    worker = WorkerRecord(
        name=WORKER,
        id="1",
        host=TEXT,
        pid=COUNT,
        started_at=bounds.INSTANT_MAX,
        version=TEXT,
        queues={QUEUE: COUNT},
        tasks=(TASK, TEXT),
        labels={f"{TEXT[:30]}{number}": "v" for number in range(labels)},
        capacity=COUNT,
        running=COUNT,
        done=COUNT,
        failed=COUNT,
        failure_rate=1.0,
        blocked=TEXT,
    )
    opened = breaker.opened_by(BreakerRecord(last=TEXT), TEXT)
    gate = Gate(
        name=GATE,
        direction="inlet",
        broker="main",
        queue=QUEUE,
        source=LONG,
        task=TASK,
        tenant=PLAIN,
    )
    run = GateRun(
        gate=GATE, queue=QUEUE, state=GateState.FAILING, text=TEXT, host=TEXT, counts={TEXT: COUNT}
    )
    entry = AuditEntry(at=wall_ms(), who=TEXT, what=TEXT, on=TEXT, peer=TEXT, outcome=TEXT)
    await app.engine.save([
        _record(WORKERS.name, WORKER, worker),
        _record(BREAKERS.name, f"{breaker.TASK_PREFIX}{TEXT}", opened),
        _record(GATES.name, GATE, gate),
        _record(PAUSES.name, QUEUE, Pause(by=TEXT, text=TEXT, at=wall_ms())),
        _record(GATE_RUNS.name, f"{GATE}/{QUEUE}", run),
    ])  # fmt: skip
    await Audit(lambda: app.engine, wall_ms).note_once(entry, "")
    job = app.job(TASK, {TEXT: EXACT}, queue=QUEUE, tenant=TEXT)
    await app.schedules.add(Schedule(name=SCHEDULE, job=job, cron="0 3 * * *", zone="UTC"))
    nothing = JobFilter(queue=QUEUE, states=(State.DEAD,), tenant=TEXT, key=TEXT)
    await app.redrives.start(RedrivePlan(wanted=nothing, by=TEXT))
    await app.declare(QUEUE, paused=True)
    await Quotas(lambda: app.engine).put(f"tenant:{TEXT}", Quota(depth=99_999))


def _record(kind: str, key: str, value: object) -> Record:
    return Record(kind=kind, key=key, value=msgspec.json.encode(value))
