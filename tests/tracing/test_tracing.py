"""One trace from the producer through the server to the worker, and none while tracing is off."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from holdfast import tracing
from holdfast.app.application import Holdfast
from holdfast.core import bounds, codec
from holdfast.core.model import Job, LeaseRequest, NewJob
from holdfast.engines.coalesced import Coalesced
from holdfast.engines.extras import Transactional, extra
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import ConfigError, UnknownQueue
from holdfast.server.application import AsgiApplication
from holdfast.server.http.endpoint import Endpoint
from holdfast.server.state import ServerState
from holdfast.worker.child.attempt import Attempt, attempt_class
from holdfast.worker.commands.command import plan
from holdfast.worker.webhooks.webhook import webhook_handler
from holdfast.worker.wire import CallJob, ChildSetup, Raised, Returned, WebhookSetup
from tests.server.loop_server import ServedEngine
from tests.server.rest_client import http_client
from tests.worker.sample_handlers import handler
from tests.worker.webhook_receiver import receiving
from tests.worker.webhooks.test_webhook import secrets_file

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = "0af7651916cd43dd8448eb211c80319c"


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    [found] = [span for span in spans.get_finished_spans() if span.name == name]
    return found


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int]:
    assert span.parent is not None
    return span.parent.trace_id, span.parent.span_id


def header(span: ReadableSpan) -> str:
    trace_id, span_id = ids(span)
    assert span.context is not None
    return f"00-{trace_id:032x}-{span_id:016x}-{span.context.trace_flags:02x}"


def given(job: Job) -> CallJob:
    return CallJob(
        job.id,
        job.queue,
        job.payload,
        job.content_type,
        job.attempt,
        1,
        job.created_at,
        headers=job.headers,
    )


def attempt(function: Any, *jobs: Job, **fields: Any) -> Attempt:
    made = attempt_class()
    return made(handler(function, name="greet", **fields), tuple(given(job) for job in jobs))


async def the_job(app: Holdfast, id: str) -> Job:
    job = await app.get(id)
    assert job is not None
    return job


async def test_from_the_producer_through_the_server_to_the_worker(
    spans: InMemorySpanExporter,
) -> None:
    served = ServedEngine(MemoryEngine())
    async with Holdfast(engine=served) as app:
        for number in range(2):
            with trace.get_tracer("tests").start_as_current_span(f"order {number}"):
                await app.enqueue("greet", [], id=f"job-{number}")
        leases = await app.engine.lease(LeaseRequest(queues=("default",), limit=2))

        def inside() -> None:
            with trace.get_tracer("tests").start_as_current_span("inside"):
                pass

        for number, lease in enumerate(leases):
            found = {
                "order": named(spans, f"order {number}"),
                "enqueue": _of_job(spans, "enqueue default", f"job-{number}"),
            }
            assert parent_of(found["enqueue"]) == ids(found["order"])
            assert lease.job.headers["traceparent"] == header(found["enqueue"])
            request = [
                span
                for span in spans.get_finished_spans()
                if span.name == "POST /v1/engine/enqueue"
                and parent_of(span) == ids(found["enqueue"])
            ]
            assert len(request) == 1, "the server goes on with the trace of what it is given"
            assert attempt(inside, lease.job).run() == (Returned(),)
            run = _of_job(spans, "run greet", f"job-{number}")
            assert parent_of(run) == ids(found["enqueue"])
            assert [each.context.span_id for each in run.links] == [ids(found["enqueue"])[1]]
            assert parent_of(spans.get_finished_spans()[-2]) == ids(run)
        kinds = {span.name.split()[0]: span.kind for span in spans.get_finished_spans()}
        assert (kinds["enqueue"], kinds["POST"], kinds["run"]) == (
            SpanKind.PRODUCER,
            SpanKind.SERVER,
            SpanKind.CONSUMER,
        )


def _of_job(spans: InMemorySpanExporter, name: str, id: str) -> ReadableSpan:
    [found] = [
        span
        for span in spans.get_finished_spans()
        if span.name == name and (span.attributes or {}).get("messaging.message.id") == id
    ]
    return found


async def test_a_request_with_a_trace_passes_it_on(spans: InMemorySpanExporter) -> None:
    store = MemoryEngine()
    served = ServedEngine(store)
    async with Holdfast(engine=served), http_client(served.place) as client:
        body = {"jobs": [{"task": "greet", "id": "a"}, {"task": "greet", "id": "b"}]}
        headers = {"traceparent": PARENT, "tracestate": "vendor=1"}
        answer = await client.post("/v1/queues/default/jobs", json=body, headers=headers)
        assert answer.status_code == 201
        own = {"task": "greet", "id": "c", "headers": {"traceparent": PARENT}}
        await client.post("/v1/queues/default/jobs", json={"jobs": [own]})
        await client.get("/v1/queues/none")
        await client.get("/healthz")
        await client.post("/v1/lease", json={"queues": ["default"], "limit": 1})
        jobs = {id_: await store.get(id_) for id_ in ("a", "b", "c")}
    request, refused = (
        next(span for span in spans.get_finished_spans() if span.name == name)
        for name in ("POST /v1/queues/{queue}/jobs", "GET /v1/queues/{queue}")
    )
    assert f"{parent_of(request)[0]:032x}" == TRACE
    assert (request.attributes or {})["http.response.status_code"] == 201
    enqueue = named(spans, "enqueue default")
    assert parent_of(enqueue) == ids(request)
    assert (enqueue.attributes or {})["messaging.batch.message_count"] == 2
    for id_ in ("a", "b"):
        job = jobs[id_]
        assert job is not None
        assert job.headers == {"traceparent": header(enqueue), "tracestate": "vendor=1"}
    job = jobs["c"]
    assert job is not None
    assert job.headers == {"traceparent": PARENT}, "a trace that a job has is left alone"
    assert (refused.attributes or {})["http.response.status_code"] == 404
    assert refused.status.status_code is StatusCode.UNSET
    told = {span.name for span in spans.get_finished_spans()}
    assert not [name for name in told if "health" in name or "lease" in name]


async def test_several_jobs_in_one_run_are_linked(spans: InMemorySpanExporter) -> None:
    async with Holdfast(engine=MemoryEngine()) as app:
        for id_ in ("a", "b"):
            await app.enqueue("greet", 1, id=id_)
        odd = NewJob(id="c", task="greet", payload=b"1", headers={"traceparent": "odd"})
        await app.engine.enqueue([odd])
        jobs = [await the_job(app, id_) for id_ in ("a", "b", "c")]
    assert jobs[2].headers == {"traceparent": "odd"}
    endings = attempt(_nothing_of_many, *jobs, batch=3).run()
    assert all(isinstance(each, Returned) for each in endings)
    run = named(spans, "run greet")
    assert run.parent is None
    assert len(run.links) == 2
    assert (run.attributes or {})["messaging.batch.message_count"] == 3


async def test_a_failure_is_recorded_by_its_type_only(spans: InMemorySpanExporter) -> None:
    async with Holdfast(engine=MemoryEngine()) as app:
        await app.enqueue("greet", [], id="a")
        job = await the_job(app, "a")

        def fail() -> None:
            raise ValueError("a secret")

        async def afail() -> None:
            raise KeyError("a secret")

        [ending] = attempt(fail, job).run()
        assert isinstance(ending, Raised)
        [ending] = await attempt(afail, job).run_async()
        assert isinstance(ending, Raised)
        with pytest.raises(UnknownQueue):
            await app.enqueue("greet", queue="none")
    first, second = (span for span in spans.get_finished_spans() if span.name == "run greet")
    for span, kind in ((first, "ValueError"), (second, "KeyError")):
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == kind
    assert "secret" not in "".join(span.to_json() for span in spans.get_finished_spans())


async def test_follow_ups_continue_the_trace(spans: InMemorySpanExporter) -> None:
    async with Holdfast(engine=MemoryEngine()) as app:
        await app.enqueue("greet", [], id="a")
        [lease] = await app.engine.lease(LeaseRequest(queues=("default",)))

        def then(ctx: Any) -> None:
            ctx.then(NewJob(id="b", task="wave"))

        [ending] = attempt(then, lease.job, context="ctx").run()
        assert isinstance(ending, Returned)
        run = named(spans, "run greet")
        assert ending.then[0].headers["traceparent"] == header(run)
        with trace.get_tracer("tests").start_as_current_span("completing"):
            await app.complete(lease, then=[NewJob(id="c", task="wave")])
        completing = named(spans, "completing")
        assert (await the_job(app, "c")).headers["traceparent"] == header(completing)


async def test_a_blocking_producer_keeps_its_trace(spans: InMemorySpanExporter) -> None:
    def produce() -> None:
        app = Holdfast(engine=MemoryEngine())
        task = app.task(name="greet")(_nothing)
        with trace.get_tracer("tests").start_as_current_span("order"):
            task.enqueue()

    await asyncio.to_thread(produce)
    assert parent_of(named(spans, "enqueue default")) == ids(named(spans, "order"))


def _nothing() -> None:
    pass


def _nothing_of_many(values: list[Any]) -> None:
    assert len(values) == 3


@pytest.mark.parametrize(
    "headers",
    [
        {f"h{number}": "x" for number in range(bounds.PAIRS_MAX)},
        {f"h{number}": "x" * 4_000 for number in range(16)},
    ],
)
async def test_no_job_is_refused_for_its_trace(
    spans: InMemorySpanExporter, headers: dict[str, str]
) -> None:
    async with Holdfast(engine=MemoryEngine()) as app:
        await app.enqueue("greet", id="a", headers=headers)
        assert (await the_job(app, "a")).headers == headers


def test_while_off_nothing_is_imported_or_wrapped(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from holdfast import Holdfast\n"
        "import holdfast.worker.child.runner\n"
        "import holdfast.server.application, holdfast.cli.root\n"
        "async def main():\n"
        "    async with Holdfast('memory:') as app:\n"
        "        await app.enqueue('t', id='a')\n"
        "        assert (await app.get('a')).headers == {}\n"
        "        print(type(app.engine).__name__)\n"
        "asyncio.run(main())\n"
        "print([name for name in sys.modules if 'opentelemetry' in name])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert ran.stdout.splitlines() == ["Coalesced", "[]"]


async def test_while_off_jobs_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("", "no", "0", "OFF"):
        monkeypatch.setenv(tracing.VARIABLE, text)
        assert not tracing.is_on()
        assert attempt_class() is Attempt
        app = Holdfast(engine=MemoryEngine())
        assert isinstance(app.engine, Coalesced)
        application = AsgiApplication(ServerState(app=app))
        positions = range(len(application._operations))
        assert {type(application._make_endpoint(each)) for each in positions} == {Endpoint}
        tracing.start_exporter("nothing")
        tracing.flush_exporter()


def test_wrong_settings_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tracing.VARIABLE, "perhaps")
    with pytest.raises(ConfigError, match="HOLDFAST_TRACING 'perhaps': expected yes or no"):
        tracing.is_on()
    monkeypatch.setenv(tracing.VARIABLE, "yes")
    monkeypatch.setattr(tracing, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'holdfast\[otel\]'"):
        Holdfast(engine=MemoryEngine())


@pytest.mark.parametrize(
    "text", ["", "00-0-0-01", PARENT + "\r\nx: y", PARENT.upper(), PARENT[:-1], " " + PARENT]
)
def test_a_malformed_trace_is_not_passed_on(text: str) -> None:
    assert codec.trace_parent({"traceparent": text}) is None
    assert codec.trace_parent({"traceparent": PARENT}) == PARENT
    assert tracing.outgoing_headers({"traceparent": text}) == {}


def test_a_command_gets_the_trace_of_its_job() -> None:
    def planned(headers: dict[str, str], env: dict[str, str] | None = None) -> dict[str, str]:
        payload = json.dumps({"command": ["true"], "env": env or {}}).encode()
        job = CallJob("j", "q", payload, "application/json", 1, 7, 0, headers=headers)
        return plan(job, ChildSetup(worker="w", worker_id="1", slots=1), {}).environment

    assert planned({"traceparent": PARENT})["TRACEPARENT"] == PARENT
    assert planned({"traceparent": PARENT}, {"TRACEPARENT": "own"})["TRACEPARENT"] == "own"
    assert "TRACEPARENT" not in planned({"traceparent": "odd"})


@pytest.mark.parametrize("on", [True, False])
async def test_a_webhook_sends_the_trace(
    spans: InMemorySpanExporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: bool
) -> None:
    if not on:
        monkeypatch.delenv(tracing.VARIABLE)
    setup = WebhookSetup(secrets_file=secrets_file(tmp_path), allow=("127.0.0.1/32",))
    async with receiving() as receiver:
        payload = json.dumps({"url": f"http://127.0.0.1:{receiver.port}/"}).encode()
        job = CallJob(
            "j", "q", payload, "application/json", 1, 7, 0, headers={"traceparent": PARENT}
        )
        await attempt_class()(webhook_handler(setup), (job,)).run_async()
    [got] = receiver.got
    expected = header(named(spans, "run webhook")) if on else PARENT
    assert got.headers["traceparent"] == expected
    assert expected[3:35] == TRACE


def test_jobs_enqueued_in_a_transaction_carry_the_trace(
    spans: InMemorySpanExporter,
) -> None:
    class Within:
        word = "kept"

        def enqueue(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
            return jobs

    class Engine(MemoryEngine):
        def within(self, connection: object) -> Within:
            return Within()

    transactional = extra(tracing.traced(Engine()), Transactional)
    assert transactional is not None
    within = transactional.within(None)
    with trace.get_tracer("tests").start_as_current_span("order"):
        [job] = within.enqueue([NewJob(id="a", task="t")])
    assert job.headers["traceparent"] == header(named(spans, "order"))
    assert within.word == "kept"
