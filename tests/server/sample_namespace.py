"""A namespace with one of everything, marked to be recognized, and an example request for every
operation."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core import breaker, workers
from holdfast.core.breaker import BreakerRecord, BreakerState
from holdfast.core.limits import Limit
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
from holdfast.core.workers import WorkerOrder, WorkerRecord
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.wire import (
    CONTENT_TYPE,
    AmendCall,
    DeclareCall,
    DropCall,
    EnqueueCall,
    ExamineCall,
    FindCall,
    FlowCall,
    IdCall,
    LeaseCall,
    LimitCall,
    LoadCall,
    QueuesCall,
    RenewCall,
    SaveCall,
    SentLease,
    SentRenewal,
    SentSettlement,
    SettleCall,
    TallyCall,
)
from holdfast.ops.alerts import ALERTS, Alert
from holdfast.ops.gates import GATE_RUNS, GATES, Gate, GateRun, GateState
from holdfast.ops.jobs.acts import (
    ACT_JOBS,
    ACTS,
    ActJobs,
    ActPlan,
    ActRecord,
    ActState,
    CountedJob,
    list_key,
)
from holdfast.ops.queues import Distribution
from holdfast.ops.quotas import QUOTA_KIND
from holdfast.ops.records import scan
from holdfast.ops.redrives import REDRIVES, RedrivePlan, RedriveRecord
from holdfast.ops.schedules import SCHEDULES
from holdfast.ops.ticks import Schedule
from holdfast.server.access.permissions import SCOPES
from holdfast.server.http.operation import JSON, Operation
from holdfast.telemetry.event_log import FeedEvent, FeedEventKind, event_record
from tests.server.direct_server import DASHBOARD, DirectReply, DirectServer, operation_id, path_of

COMMAND = b'{"command":["echo"]}'


@dataclass(frozen=True)
class SampleNamespace:
    """`own` is at the end of every name in it, and `mark` in everything it says. `held` is the
    lease that somebody has of it."""

    mark: str
    own: str
    held: SentLease

    def __getitem__(self, name: str) -> str:
        return f"{name}{self.own}"


async def fill_namespace(
    engine: Engine, mark: str, own: str = "", queue: str = "default"
) -> SampleNamespace:
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
    return SampleNamespace(mark, own, SentLease.of(lease))


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
    act = ActRecord(
        id=name("a1"),
        plan=ActPlan(act="expedite", wanted=JobFilter(queue=queue)),
        state=ActState.COUNTED,
        count=1,
        queues=(queue,),
        by=mark,
    )
    listed = ActJobs(jobs=(CountedJob(name("late"), 1),), created_before=2**50)
    gate = Gate(
        name=name("inlet"), direction="inlet", broker="b", queue=queue, source=mark, task="t"
    )
    shut = replace(gate, name=name("paused-inlet"), paused=True)
    run = GateRun(gate=gate.name, queue=queue, state=GateState.FAILING, text=mark, host=mark)
    event = FeedEvent(kind=FeedEventKind.JOB_DIED, at=at, queue=queue, id=name("dead"), text=mark)
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
        Record(kind=workers.ORDER_KIND, key=worker.name, value=encode(WorkerOrder(by=mark))),
        Record(kind=breaker.KIND, key=f"task:{name('t')}", value=encode(broken)),
        *(SCHEDULES.record(each.name, each) for each in schedules),
        REDRIVES.record(redrive.id, redrive),
        ACTS.record(act.id, act),
        ACT_JOBS.record(list_key(act.id, 0), listed),
        GATES.record(gate.name, gate),
        GATES.record(shut.name, shut),
        GATE_RUNS.record(f"{gate.name}/p", run),
        Record(
            kind="distribution",
            key=f"{queue}.busy",
            value=encode(Distribution(source=f"{queue}.in*", target=f"{queue}.busy")),
        ),
        Record(kind=workers.ORDER_KIND, key=name("broken"), value=b"?"),
        Record(kind="pause", key=queue, value=encode({"by": mark})),
        Record(kind="setting", key="lease", value=b"29s"),
        Record(kind=QUOTA_KIND, key=f"tenant:{name('acme')}", value=b'{"depth":1000}'),
        event_record(f"{at}-{mark.lower()}-1", [event]),
        ALERTS.record(alert.key, alert),
    ]


async def read_everything(engine: Engine) -> dict[str, Any]:
    """Everything in the store, without ages."""
    views = await engine.queues()
    jobs = [await engine.get(job.id) for job in (await engine.find(JobFilter(), limit=1000)).jobs]
    return {
        "queues": [replace(view, oldest_age_ms=None) for view in views],
        "jobs": jobs,
        "records": {
            kind: {each.key: (each, 0) for each in kept}
            for kind in _kinds(engine)
            if (kept := [replace(each, age_ms=0) async for each in scan(engine, kind)])
        },
    }


def _kinds(engine: Engine) -> list[str]:
    """All that there are, where that can be known."""
    if isinstance(engine, MemoryEngine):
        return list(engine._records)
    return [*SCOPES, "token", "audit", "idempotency", QUOTA_KIND]


@dataclass(frozen=True)
class ExampleRequest:
    """A request: the names in its path, its query and its body, and `more` about how it is
    sent."""

    names: dict[str, str] = field(default_factory=dict)
    query: dict[str, Any] = field(default_factory=dict)
    body: Any = None
    more: dict[str, Any] = field(default_factory=dict)


OWN_TOKEN = "hf_own"
"""Stands for the caller's own token in a body."""


async def send_example(
    at: DirectServer, operation: Operation, example: ExampleRequest, **more: Any
) -> DirectReply:
    path = path_of(operation, example.names, example.query)
    body, content_type = example.body, JSON
    if operation.content_type == CONTENT_TYPE:
        content_type = CONTENT_TYPE
        body = None if body is None else msgspec.msgpack.encode(body)
    if body == {"token": OWN_TOKEN}:
        body = {"token": more.get("token") or OWN_TOKEN}
    more = {**example.more, **more}
    asking = at.ask(operation.method, path, body, content_type=content_type, **more)
    return await asyncio.wait_for(asking, 30)


def example_request(
    operation: Operation, of: SampleNamespace, queue: str = "default"
) -> ExampleRequest:
    """One that the operation answers, about what is in this world. An operation that is not known
    here has to be given one."""
    examples = {**_jobs(of, queue), **_queues(queue, of), **_others(of, queue), **_verbs(of, queue)}
    assert operation_id(operation) in examples, (
        f"give {operation_id(operation)} an example in {__name__}"
    )
    return examples[operation_id(operation)]


def _jobs(of: SampleNamespace, queue: str) -> dict[str, ExampleRequest]:
    new = {"task": "t", "id": of["new"], "payload": {"y": 1}}
    held = {"id": of.held.id, "token": of.held.token}
    which = {"filter": {"queue": queue}}
    job = {"id": of["wait"]}
    return {
        "POST /v1/queues/{queue}/jobs": ExampleRequest({"queue": queue}, body={"jobs": [new]}),
        "POST /v1/jobs": ExampleRequest(body={"jobs": [{**new, "queue": queue}]}),
        "POST /v1/jobs/{id}/cancel": ExampleRequest(job, body={"text": "x"}),
        "POST /v1/jobs/{id}/retry": ExampleRequest({"id": of["dead"]}, body={}),
        "POST /v1/jobs/{id}/expedite": ExampleRequest({"id": of["late"]}),
        "POST /v1/jobs/{id}/reroute": ExampleRequest(
            {"id": of["addressed"]}, body={"to": of["w2"]}
        ),
        "PATCH /v1/jobs/{id}": ExampleRequest(job, body={"priority": 5, "payload": {"z": 1}}),
        "DELETE /v1/jobs/{id}": ExampleRequest(job),
        "POST /v1/jobs/amend": ExampleRequest(
            body={"filter": {"queue": queue, "task": "t"}, "act": "edit", "payload": {"p": 1}}
        ),
        "POST /v1/lease": ExampleRequest(body={"queues": [queue], "limit": 50, "worker": "x"}),
        "POST /v1/renew": ExampleRequest(body={"renewals": [held]}),
        "POST /v1/settle": ExampleRequest(body={"verdicts": [{**held, "verdict": "complete"}]}),
        "GET /v1/jobs/{id}": ExampleRequest(job),
        "GET /v1/jobs/{id}/timeline": ExampleRequest({"id": of["dead"]}),
        "GET /v1/jobs/{id}/explain": ExampleRequest(job),
        "GET /v1/jobs/{id}/output": ExampleRequest({"id": of["done"]}),
        "GET /v1/jobs": ExampleRequest(query={"queue": queue}),
        "GET /v1/tally": ExampleRequest(query={"by": "tenant", "queue": queue}),
        "POST /v1/cleanup": ExampleRequest(body={"days": 0, "queue": queue}),
        "POST /v1/batches": ExampleRequest(
            body={"jobs": [{**new, "queue": queue}], "then": {"task": "t", "queue": queue}}
        ),
        "GET /v1/batches/{id}": ExampleRequest({"id": of["whole"]}),
        "GET /v1/dead": ExampleRequest(query={"queue": queue}),
        "GET /v1/dead/groups": ExampleRequest(query={"queue": queue}),
        "GET /v1/dead/quarantine": ExampleRequest(query={"queue": queue}),
        "POST /v1/dead/retry": ExampleRequest(body={"filter": {"queue": queue, "task": "t"}}),
        "POST /v1/dead/purge": ExampleRequest(body=which),
    }


def _queues(queue: str, of: SampleNamespace) -> dict[str, ExampleRequest]:
    one = {"queue": queue}
    return {
        "GET /v1/queues": ExampleRequest(),
        "POST /v1/queues": ExampleRequest(body={"name": f"{queue}.new{of.own}"}),
        "GET /v1/queues/{queue}": ExampleRequest(one),
        "PATCH /v1/queues/{queue}": ExampleRequest(one, body={"max_attempts": 9}),
        "POST /v1/queues/{queue}/pause": ExampleRequest(one, body={"text": "x"}),
        "POST /v1/queues/{queue}/resume": ExampleRequest({"queue": f"{queue}.busy"}),
        "POST /v1/queues/{queue}/drain": ExampleRequest(one, body={"wait": 0}),
        "POST /v1/queues/{queue}/clear": ExampleRequest(one, body={}),
        "DELETE /v1/queues/{queue}": ExampleRequest(one),
        "GET /v1/queues/{queue}/limits": ExampleRequest(one),
        "PUT /v1/queues/{queue}/limits/{name}": ExampleRequest(
            {**one, "name": of["few"]}, body={"concurrency": 2}
        ),
        "DELETE /v1/queues/{queue}/limits/{name}": ExampleRequest({**one, "name": of["few"]}),
        "GET /v1/queues/{queue}/tenants": ExampleRequest({"queue": f"{queue}.busy"}),
        "GET /v1/queues/{queue}/sqs": ExampleRequest({"queue": f"{queue}.busy"}),
        "GET /v1/distributions": ExampleRequest(),
        "PUT /v1/distributions/{queue}": ExampleRequest(
            {"queue": f"{queue}.busy"}, body={"source": f"{queue}.a*"}
        ),
        "DELETE /v1/distributions/{queue}": ExampleRequest({"queue": f"{queue}.busy"}),
        "GET /v1/scaling": ExampleRequest(query={"queue": queue}),
        "GET /v1/history": ExampleRequest(query={"queue": queue}),
    }


def _others(of: SampleNamespace, queue: str) -> dict[str, ExampleRequest]:
    nightly, breaker_ = {"name": of["nightly"]}, {"name": of["t"]}
    inlet = {"name": of["inlet"]}
    quota = {"whose": f"tenant:{of['acme']}"}
    return {
        "GET /v1/session": ExampleRequest(),
        "POST /v1/session": ExampleRequest(body={"token": OWN_TOKEN}, more=DASHBOARD),
        "DELETE /v1/session": ExampleRequest(),
        "GET /healthz": ExampleRequest(),
        "GET /v1/alerts": ExampleRequest(),
        "GET /readyz": ExampleRequest(),
        "GET /metrics": ExampleRequest(),
        "GET /v1/status": ExampleRequest(),
        "GET /v1/overview": ExampleRequest(),
        "GET /v1/doctor": ExampleRequest(),
        "GET /v1/events": ExampleRequest(query={"after": "0000000000000-x"}),
        "GET /v1/live": ExampleRequest(query={"topic": "overview"}),
        "GET /v1/openapi.json": ExampleRequest(),
        "GET /v1/docs": ExampleRequest(),
        "GET /v1/docs/openapi-explorer.min.js": ExampleRequest(),
        "GET /v1/redrives": ExampleRequest(),
        "POST /v1/redrives": ExampleRequest(body={"filter": {"queue": queue}}),
        "GET /v1/redrives/{id}": ExampleRequest({"id": of["r1"]}),
        "POST /v1/redrives/{id}/cancel": ExampleRequest({"id": of["r1"]}),
        "GET /v1/acts": ExampleRequest(),
        "POST /v1/acts": ExampleRequest(
            body={"act": "cancel", "filter": {"queue": queue, "task": "t"}}
        ),
        "GET /v1/acts/{id}": ExampleRequest({"id": of["a1"]}),
        "POST /v1/acts/{id}/run": ExampleRequest({"id": of["a1"]}),
        "POST /v1/acts/{id}/stop": ExampleRequest({"id": of["a1"]}),
        "GET /v1/schedules": ExampleRequest(),
        "POST /v1/schedules": ExampleRequest(
            body={"name": of["more"], "every": "1h", "job": {"task": "t", "queue": queue}}
        ),
        "GET /v1/schedules/{name}": ExampleRequest(nightly),
        "PATCH /v1/schedules/{name}": ExampleRequest(nightly, body={"every": "2h"}),
        "DELETE /v1/schedules/{name}": ExampleRequest(nightly),
        "POST /v1/schedules/{name}/pause": ExampleRequest(nightly),
        "POST /v1/schedules/{name}/resume": ExampleRequest({"name": of["resting"]}),
        "POST /v1/schedules/{name}/run": ExampleRequest(nightly, body={}),
        "GET /v1/schedules/{name}/ticks": ExampleRequest(nightly),
        "GET /v1/schedules/{name}/runs": ExampleRequest(nightly),
        "GET /v1/ticks": ExampleRequest(query={"every": "1h"}),
        "GET /v1/gates": ExampleRequest(),
        "GET /v1/gates/{name}": ExampleRequest(inlet),
        "PUT /v1/gates/{name}": ExampleRequest(
            {"name": of["new-inlet"]},
            body={"direction": "outlet", "broker": "b", "queue": queue, "exchange": "x"},
        ),
        "DELETE /v1/gates/{name}": ExampleRequest(inlet),
        "POST /v1/gates/{name}/pause": ExampleRequest(inlet),
        "POST /v1/gates/{name}/resume": ExampleRequest({"name": of["paused-inlet"]}),
        "GET /v1/workers": ExampleRequest(),
        "GET /v1/workers/{name}": ExampleRequest({"name": of["w1"]}),
        "POST /v1/workers/orders": ExampleRequest(body={"order": "cordon", "workers": [of["w1"]]}),
        "GET /v1/breakers": ExampleRequest(),
        "GET /v1/breakers/{name}": ExampleRequest(breaker_),
        "POST /v1/breakers/{name}/open": ExampleRequest(breaker_),
        "POST /v1/breakers/{name}/close": ExampleRequest(breaker_),
        "GET /v1/config": ExampleRequest(),
        "GET /v1/config/{name}": ExampleRequest({"name": "lease"}),
        "PUT /v1/config/{name}": ExampleRequest({"name": "lease"}, body={"value": "10s"}),
        "POST /v1/config/{name}/unset": ExampleRequest({"name": "lease"}),
        "POST /v1/tokens": ExampleRequest(body={"name": "new", "scopes": ["produce"]}),
        "GET /v1/tokens": ExampleRequest(),
        "DELETE /v1/tokens/{named}": ExampleRequest({"named": of["token"]}),
        "GET /v1/audit": ExampleRequest(),
        "GET /v1/quotas": ExampleRequest(),
        "PUT /v1/quotas/{whose}": ExampleRequest(quota, body={"depth": 7}),
        "DELETE /v1/quotas/{whose}": ExampleRequest(quota),
        "DELETE /v1/records/{kind}/{key}": ExampleRequest(
            {"kind": workers.ORDER_KIND, "key": of["broken"]}
        ),
    }


def _verbs(of: SampleNamespace, queue: str) -> dict[str, ExampleRequest]:
    held = of.held
    one = JobFilter(ids=(of["wait"],))
    follow_up = NewJob(id=of["next"], task="t", queue=queue)
    entry = Record(kind="pause", key=queue, value=b'{"by":"x"}', version=1)
    verbs: dict[str, Any] = {
        "declare": DeclareCall(Queue(name=queue, max_attempts=8)),
        "drop": DropCall(queue),
        "queues": QueuesCall(),
        "enqueue": EnqueueCall([NewJob(id=of["new"], task="t", queue=queue)]),
        "lease": LeaseCall(LeaseRequest(queues=(queue,), limit=50)),
        "renew": RenewCall([SentRenewal(held)]),
        "settle": SettleCall([SentSettlement(held, Complete(then=(follow_up,)))]),
        "overdue": LimitCall(100),
        "expired": LimitCall(100),
        "finished": LimitCall(100),
        "recount": LimitCall(100),
        "flow": FlowCall(queue, 100),
        "waits": IdCall(of["wait"]),
        "get": IdCall(of["wait"]),
        "find": FindCall(JobFilter(queue=queue), 100),
        "tally": TallyCall(JobFilter(queue=queue), "tenant", 100),
        "amend": AmendCall(one, Cancel(), 100),
        "load": LoadCall("schedule", 100),
        "save": SaveCall([entry]),
        "examine": ExamineCall(),
    }
    return {
        "GET /v1/engine": ExampleRequest(),
        **{f"POST /v1/engine/{verb}": ExampleRequest(body=body) for verb, body in verbs.items()},
    }
