"""A namespace with one of everything in it, marked so that it is known again anywhere, and for
every operation there is a request that it answers."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.alerts.book import Alert
from holdfast.alerts.book import record_of as alert_record
from holdfast.core import breaker, workers
from holdfast.core.breaker import BreakerRecord, BreakerState
from holdfast.core.flow import Limit
from holdfast.core.model import (
    Failure,
    JobFilter,
    LeaseRequest,
    NewJob,
    Note,
    Queue,
    Record,
)
from holdfast.core.verdict import Bury, Cancel, Complete, Settlement, Verdict
from holdfast.core.workers import Order, WorkerRecord
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.verbs import (
    CONTENT_TYPE,
    Amend,
    Bounded,
    Declare,
    Drop,
    Enqueue,
    Examine,
    Find,
    FlowCall,
    Held,
    LeaseCall,
    Load,
    One,
    Queues,
    Renew,
    Renewed,
    Save,
    Settle,
    Settled,
    TallyCall,
)
from holdfast.server.operations import JSON, Operation
from holdfast.server.quotas import KIND as QUOTA_KIND
from holdfast.server.records import SCOPES
from holdfast.telemetry.notable import Kind, Notable, record_of
from holdfast.upkeep import Schedule
from holdfast.upkeep.distributions import Distribution
from holdfast.upkeep.paging import records
from holdfast.upkeep.redrive import RedrivePlan, RedriveRecord
from holdfast.upkeep.redrives import encode as encode_redrive
from holdfast.upkeep.schedules import encode as encode_schedule
from tests.server.house import House, Reply, filled, name_of

COMMAND = b'{"command":["echo"]}'


@dataclass(frozen=True)
class World:
    """`own` is at the end of every name in it, and `mark` in everything it says. `held` is the
    lease that somebody has of it."""

    mark: str
    own: str
    held: Held

    def __getitem__(self, name: str) -> str:
        return f"{name}{self.own}"


async def world(engine: Engine, mark: str, own: str = "", queue: str = "default") -> World:
    """`queue` is where its jobs are."""

    def name(text: str) -> str:
        return f"{text}{own}"

    def job(id: str, **more: Any) -> NewJob:
        given = {"task": "t", "queue": queue, "payload": f'{{"x":"{mark}"}}'.encode(), **more}
        return NewJob(id=name(id), **given)

    busy = f"{queue}.busy"
    for each in (
        Queue(name=queue, limits=(Limit(name=name("few"), concurrency=5),), max_depth=900),
        Queue(name=busy, weights={mark: 2}, fairness="shares"),
        Queue(name=f"worker.{name('w1')}"),
        Queue(name=f"worker.{name('w2')}"),
    ):
        await engine.declare(each)
    jobs = [
        job("wait", key=name("k"), tenant=mark, labels={"l": mark}),
        job("late", delay_ms=3_600_000),
        job("dead"),
        job("done"),
        job("lease", queue=busy),
        job("addressed", queue=f"worker.{name('w1')}"),
        job("command", task="command", payload=COMMAND, key=name("ck")),
        job("command-dead", task="command", payload=COMMAND),
        job("part"),
        job("whole", after=(name("part"),)),
    ]
    receipts = await engine.enqueue(jobs)
    assert all(each.status == "new" for each in receipts), receipts
    for ended in ("dead", "command-dead", "done"):
        [lease] = await engine.lease(LeaseRequest(ids=(name(ended),), worker=name("w1")))
        verdict: Verdict = Complete(result=f'"{mark}"'.encode())
        if ended != "done":
            verdict = Bury(failure=Failure(type="Bad", message=mark))
        note = Note(output=mark.encode())
        await engine.settle([Settlement(lease=lease, verdict=verdict, note=note)])
    await engine.save(_records(mark, name, queue, job))
    [lease] = await engine.lease(LeaseRequest(ids=(name("lease"),), worker=name("w1")))
    await engine.declare(Queue(name=busy, weights={mark: 2}, fairness="shares", paused=True))
    return World(mark, own, Held.of(lease))


def _records(
    mark: str, name: Callable[[str], str], queue: str, job: Callable[..., NewJob]
) -> list[Record]:
    worker = WorkerRecord(
        name=name("w1"),
        id="i",
        host=mark,
        pid=1,
        started_at=0,
        queues={queue: 1},
        tasks=("command", "t"),
        labels={"l": mark},
        capacity=4,
    )
    second = replace(worker, name=name("w2"))
    broken = BreakerRecord(state=BreakerState.OPEN, open_ms=60_000, last=mark)
    at = 1_000_000_000_000
    schedules = [
        Schedule(name=name("nightly"), every_ms=3_600_000, job=job("-"), passed_at=at),
        Schedule(name=name("resting"), cron="@daily", job=job("-"), passed_at=at, paused=True),
        Schedule(
            name=name("command-nightly"),
            every_ms=3_600_000,
            job=job("-", task="command", payload=COMMAND),
            passed_at=at,
        ),
    ]
    redrive = RedriveRecord(
        id=name("r1"), plan=RedrivePlan(wanted=JobFilter(queue=queue), by=mark), total=1
    )
    event = Notable(kind=Kind.JOB_DIED, at=at, queue=queue, id=name("dead"), text=mark)
    alert = Alert(
        rule="depth",
        about=queue,
        queue=queue,
        severity="critical",
        unit="jobs",
        value=101,
        threshold=100,
        text=mark,
        raised_at=at,
        seen_at=at,
    )
    encode = msgspec.json.encode
    return [
        Record(kind=workers.KIND, key=worker.name, value=encode(worker)),
        Record(kind=workers.KIND, key=second.name, value=encode(second)),
        Record(kind=workers.ORDER_KIND, key=worker.name, value=encode(Order(by=mark))),
        Record(kind=breaker.KIND, key=f"task:{name('t')}", value=encode(broken)),
        *(encode_schedule(each, 0) for each in schedules),
        encode_redrive(redrive),
        Record(
            kind="distribution",
            key=f"{queue}.busy",
            value=encode(Distribution(source=f"{queue}.in*", target=f"{queue}.busy")),
        ),
        Record(kind="pause", key=queue, value=encode({"by": mark})),
        Record(kind="setting", key="lease", value=b"29s"),
        Record(kind=QUOTA_KIND, key=f"tenant:{name('acme')}", value=b'{"depth":1000}'),
        record_of(f"{at}-{mark.lower()}-1", [event]),
        alert_record(alert, 0),
    ]


async def everything(engine: Engine) -> dict[str, Any]:
    """What there is, but for how old it is."""
    views = await engine.queues()
    jobs = [await engine.get(job.id) for job in (await engine.find(JobFilter(), limit=1000)).jobs]
    return {
        "queues": [replace(view, oldest_age_ms=None) for view in views],
        "jobs": jobs,
        "records": {
            kind: {each.key: (each, 0) for each in kept}
            for kind in _kinds(engine)
            if (kept := [replace(each, age_ms=0) async for each in records(engine, kind)])
        },
    }


def _kinds(engine: Engine) -> list[str]:
    """All that there are, where that can be known."""
    if isinstance(engine, MemoryEngine):
        return list(engine._records)
    return [*SCOPES, "token", "audit", "idempotency", QUOTA_KIND]


@dataclass(frozen=True)
class Example:
    """A request: the names in its path, its query and its body."""

    names: dict[str, str] = field(default_factory=dict)
    query: dict[str, Any] = field(default_factory=dict)
    body: Any = None


async def try_out(at: House, operation: Operation, example: Example, **more: Any) -> Reply:
    path = filled(operation, example.names, example.query)
    body, content_type = example.body, JSON
    if operation.content_type == CONTENT_TYPE:
        content_type = CONTENT_TYPE
        body = None if body is None else msgspec.msgpack.encode(body)
    asking = at.ask(operation.method, path, body, content_type=content_type, **more)
    return await asyncio.wait_for(asking, 30)


def example(operation: Operation, of: World, queue: str = "default") -> Example:
    """One that the operation answers, about what is in this world. An operation that is not known
    here has to be given one."""
    examples = {**_jobs(of, queue), **_queues(queue, of), **_others(of, queue), **_verbs(of, queue)}
    assert name_of(operation) in examples, f"give {name_of(operation)} an example in {__name__}"
    return examples[name_of(operation)]


def _jobs(of: World, queue: str) -> dict[str, Example]:
    new = {"task": "t", "id": of["new"], "payload": {"y": 1}}
    held = {"id": of.held.id, "token": of.held.token}
    which = {"filter": {"queue": queue}}
    job = {"id": of["wait"]}
    return {
        "POST /v1/queues/{queue}/jobs": Example({"queue": queue}, body={"jobs": [new]}),
        "POST /v1/jobs": Example(body={"jobs": [{**new, "queue": queue}]}),
        "POST /v1/jobs/{id}/cancel": Example(job, body={"text": "x"}),
        "POST /v1/jobs/{id}/retry": Example({"id": of["dead"]}, body={}),
        "POST /v1/jobs/{id}/expedite": Example({"id": of["late"]}),
        "POST /v1/jobs/{id}/reroute": Example({"id": of["addressed"]}, body={"to": of["w2"]}),
        "PATCH /v1/jobs/{id}": Example(job, body={"priority": 5, "payload": {"z": 1}}),
        "DELETE /v1/jobs/{id}": Example(job),
        "POST /v1/jobs/amend": Example(
            body={"filter": {"queue": queue, "task": "t"}, "act": "edit", "payload": {"p": 1}}
        ),
        "POST /v1/lease": Example(body={"queues": [queue], "limit": 50, "worker": "x"}),
        "POST /v1/renew": Example(body={"renewals": [held]}),
        "POST /v1/settle": Example(body={"verdicts": [{**held, "verdict": "complete"}]}),
        "GET /v1/jobs/{id}": Example(job),
        "GET /v1/jobs/{id}/timeline": Example({"id": of["dead"]}),
        "GET /v1/jobs/{id}/explain": Example(job),
        "GET /v1/jobs/{id}/output": Example({"id": of["done"]}),
        "GET /v1/jobs": Example(query={"queue": queue}),
        "GET /v1/tally": Example(query={"by": "tenant", "queue": queue}),
        "POST /v1/cleanup": Example(body={"days": 0, "queue": queue}),
        "POST /v1/batches": Example(
            body={"jobs": [{**new, "queue": queue}], "then": {"task": "t", "queue": queue}}
        ),
        "GET /v1/batches/{id}": Example({"id": of["whole"]}),
        "GET /v1/dead": Example(query={"queue": queue}),
        "GET /v1/dead/groups": Example(query={"queue": queue}),
        "GET /v1/dead/quarantine": Example(query={"queue": queue}),
        "POST /v1/dead/retry": Example(body={"filter": {"queue": queue, "task": "t"}}),
        "POST /v1/dead/purge": Example(body=which),
    }


def _queues(queue: str, of: World) -> dict[str, Example]:
    one = {"queue": queue}
    return {
        "GET /v1/queues": Example(),
        "POST /v1/queues": Example(body={"name": f"{queue}.new{of.own}"}),
        "GET /v1/queues/{queue}": Example(one),
        "PATCH /v1/queues/{queue}": Example(one, body={"max_attempts": 9}),
        "POST /v1/queues/{queue}/pause": Example(one, body={"text": "x"}),
        "POST /v1/queues/{queue}/resume": Example({"queue": f"{queue}.busy"}),
        "POST /v1/queues/{queue}/drain": Example(one, body={"wait": 0}),
        "POST /v1/queues/{queue}/clear": Example(one, body={}),
        "DELETE /v1/queues/{queue}": Example(one),
        "GET /v1/queues/{queue}/limits": Example(one),
        "PUT /v1/queues/{queue}/limits/{name}": Example(
            {**one, "name": of["few"]}, body={"concurrency": 2}
        ),
        "DELETE /v1/queues/{queue}/limits/{name}": Example({**one, "name": of["few"]}),
        "GET /v1/queues/{queue}/tenants": Example({"queue": f"{queue}.busy"}),
        "GET /v1/distributions": Example(),
        "PUT /v1/distributions/{queue}": Example(
            {"queue": f"{queue}.busy"}, body={"source": f"{queue}.a*"}
        ),
        "DELETE /v1/distributions/{queue}": Example({"queue": f"{queue}.busy"}),
        "GET /v1/scaling": Example(query={"queue": queue}),
        "GET /v1/history": Example(query={"queue": queue}),
    }


def _others(of: World, queue: str) -> dict[str, Example]:
    nightly, breaker_ = {"name": of["nightly"]}, {"name": of["t"]}
    quota = {"whose": f"tenant:{of['acme']}"}
    return {
        "GET /": Example(),
        "GET /healthz": Example(),
        "GET /v1/alerts": Example(),
        "GET /readyz": Example(),
        "GET /metrics": Example(),
        "GET /v1/status": Example(),
        "GET /v1/doctor": Example(),
        "GET /v1/events": Example(query={"after": "0000000000000-x"}),
        "GET /v1/openapi.json": Example(),
        "GET /v1/docs": Example(),
        "GET /v1/docs/openapi-explorer.min.js": Example(),
        "GET /v1/redrives": Example(),
        "POST /v1/redrives": Example(body={"filter": {"queue": queue}}),
        "GET /v1/redrives/{id}": Example({"id": of["r1"]}),
        "POST /v1/redrives/{id}/cancel": Example({"id": of["r1"]}),
        "GET /v1/schedules": Example(),
        "POST /v1/schedules": Example(
            body={"name": of["more"], "every": "1h", "job": {"task": "t", "queue": queue}}
        ),
        "GET /v1/schedules/{name}": Example(nightly),
        "PATCH /v1/schedules/{name}": Example(nightly, body={"every": "2h"}),
        "DELETE /v1/schedules/{name}": Example(nightly),
        "POST /v1/schedules/{name}/pause": Example(nightly),
        "POST /v1/schedules/{name}/resume": Example({"name": of["resting"]}),
        "POST /v1/schedules/{name}/run": Example(nightly, body={}),
        "GET /v1/schedules/{name}/ticks": Example(nightly),
        "GET /v1/ticks": Example(query={"every": "1h"}),
        "GET /v1/workers": Example(),
        "GET /v1/workers/{name}": Example({"name": of["w1"]}),
        "POST /v1/workers/orders": Example(body={"order": "cordon", "workers": [of["w1"]]}),
        "GET /v1/breakers": Example(),
        "GET /v1/breakers/{name}": Example(breaker_),
        "POST /v1/breakers/{name}/open": Example(breaker_),
        "POST /v1/breakers/{name}/close": Example(breaker_),
        "GET /v1/config": Example(),
        "GET /v1/config/{name}": Example({"name": "lease"}),
        "PUT /v1/config/{name}": Example({"name": "lease"}, body={"value": "10s"}),
        "POST /v1/config/{name}/unset": Example({"name": "lease"}),
        "POST /v1/tokens": Example(body={"name": "new", "scopes": ["produce"]}),
        "GET /v1/tokens": Example(),
        "DELETE /v1/tokens/{named}": Example({"named": of["token"]}),
        "GET /v1/audit": Example(),
        "GET /v1/quotas": Example(),
        "PUT /v1/quotas/{whose}": Example(quota, body={"depth": 7}),
        "DELETE /v1/quotas/{whose}": Example(quota),
    }


def _verbs(of: World, queue: str) -> dict[str, Example]:
    held = of.held
    one = JobFilter(ids=(of["wait"],))
    follow_up = NewJob(id=of["next"], task="t", queue=queue)
    entry = Record(kind="pause", key=queue, value=b'{"by":"x"}', version=1)
    verbs: dict[str, Any] = {
        "declare": Declare(Queue(name=queue, max_attempts=8)),
        "drop": Drop(queue),
        "queues": Queues(),
        "enqueue": Enqueue([NewJob(id=of["new"], task="t", queue=queue)]),
        "lease": LeaseCall(LeaseRequest(queues=(queue,), limit=50)),
        "renew": Renew([Renewed(held)]),
        "settle": Settle([Settled(held, Complete(then=(follow_up,)))]),
        "overdue": Bounded(100),
        "expired": Bounded(100),
        "finished": Bounded(100),
        "recount": Bounded(100),
        "flow": FlowCall(queue, 100),
        "waits": One(of["wait"]),
        "get": One(of["wait"]),
        "find": Find(JobFilter(queue=queue), 100),
        "tally": TallyCall(JobFilter(queue=queue), "tenant", 100),
        "amend": Amend(one, Cancel(), 100),
        "load": Load("schedule", 100),
        "save": Save([entry]),
        "examine": Examine(),
    }
    return {
        "GET /v1/engine": Example(),
        **{f"POST /v1/engine/{verb}": Example(body=body) for verb, body in verbs.items()},
    }
