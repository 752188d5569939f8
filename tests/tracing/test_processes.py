"""Producer, server and worker as separate processes, with a collector of their spans."""

import asyncio
import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.app.application import Holdfast
from holdfast.tracing import VARIABLE
from tests.cli.program import command, environment, run_program
from tests.tracing.collector import Collector, Seen, collecting
from tests.worker.live_workers import until

APPLICATION = f"{Path(__file__).with_name('application.py')}:app"


@contextlib.contextmanager
def started(folder: Path, *line: str, **given: str) -> Iterator["subprocess.Popen[str]"]:
    """A program that is told to end at the end, and so sends what it has."""
    popen = subprocess.Popen(
        command(*line),
        cwd=folder,
        env=environment(**given),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with popen:
            yield popen
            popen.send_signal(signal.SIGTERM)
            popen.wait(60)
    finally:
        popen.kill()


def variables(collector: Collector, **more: str) -> dict[str, Any]:
    return {
        VARIABLE: "yes",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        **more,
    }


def server_of(popen: "subprocess.Popen[str]") -> str:
    assert popen.stdout is not None
    url: str = json.loads(popen.stdout.readline())["server"]
    return url


@pytest.mark.parametrize("forks", ["1", "0"])
async def test_one_trace_through_all_processes(tmp_path: Path, forks: str) -> None:
    """Jobs that the handler enqueues, and follow-up jobs, are part of the same trace."""

    def look(collector: Collector) -> dict[str, Seen]:
        found = {f"{each.service} {each.name}": each for each in collector.spans}
        return found if sum(each.name == "run wave" for each in collector.spans) == 2 else {}

    with collecting() as collector:
        serve = ["serve", "--port", "0", "--json", "--url", "sqlite:///jobs.db"]
        given = variables(collector, HOLDFAST_TEMPLATE=forks)
        with started(tmp_path, *serve, **given) as server:
            url = await asyncio.to_thread(server_of, server)
            run = ["worker", "run", APPLICATION, "--url", url, "--processes", "1"]
            with started(tmp_path, *run, **given):
                put = ["enqueue", "--task", "greet", "--payload", '["Ada"]', "--url", url]
                ran = await asyncio.to_thread(run_program, tmp_path, *put, **given)
                assert ran.code == 0, ran.err
                found = await until(lambda: look(collector), "the spans")
        spans = collector.spans
    enqueue = found["holdfast enqueue default"]
    request = found["holdfast-server POST /v1/engine/enqueue"]
    greet = found["holdfast-worker run greet"]
    inside = found["holdfast-worker inside"]
    assert {each.trace for each in (enqueue, request, greet, inside)} == {enqueue.trace}
    assert greet.parent == enqueue.id
    assert greet.links == (enqueue.id,)
    assert inside.parent == greet.id
    inner = next(each for each in spans if each.parent == inside.id)
    assert (inner.service, inner.name) == ("holdfast-worker", "enqueue default")
    waves = [each for each in spans if each.name == "run wave"]
    assert {each.parent for each in waves} == {inner.id, greet.id}
    assert {each.trace for each in waves} == {enqueue.trace}
    requests = [each for each in spans if each.name == "POST /v1/engine/enqueue"]
    assert {each.parent for each in requests} == {enqueue.id, inner.id}
    assert greet.attributes["messaging.message.id"] == enqueue.attributes["messaging.message.id"]
    assert not any("Ada" in str(each) for each in spans)


async def test_standard_variables_set_service_name_and_exporter(tmp_path: Path) -> None:
    put = ["enqueue", "--task", "greet"]
    with collecting() as collector:
        named = variables(collector, OTEL_SERVICE_NAME="shop", OTEL_RESOURCE_ATTRIBUTES="a=b")
        assert run_program(tmp_path, *put, **named).code == 0
        [span] = collector.spans
        assert (span.service, span.name) == ("shop", "enqueue default")
        off = variables(collector, OTEL_TRACES_SAMPLER="always_off")
        assert run_program(tmp_path, *put, **off).code == 0
        none = variables(collector, OTEL_TRACES_EXPORTER="none")
        assert run_program(tmp_path, *put, **none).code == 0
        assert len(collector.spans) == 1
        console = variables(collector, OTEL_TRACES_EXPORTER="console")
        assert '"enqueue default"' in run_program(tmp_path, *put, **console).out
        odd = variables(collector, OTEL_TRACES_EXPORTER="pigeon")
        ran = run_program(tmp_path, *put, **odd)
        assert (ran.code, "exporter 'pigeon' is not installed" in ran.err) == (2, True)


async def test_a_command_runs_in_a_span_and_gets_its_trace(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    script = ["sh", "-c", "echo $TRACEPARENT; exit 3"]
    with collecting() as collector:
        given = variables(collector)
        put = ["enqueue", "--max-retries", "0", "--url", url, "--", *script]
        id_ = (await asyncio.to_thread(run_program, tmp_path, *put, **given)).out.strip()
        with started(tmp_path, "worker", "start", "--url", url, **given):

            def look() -> list[Seen]:
                return [each for each in collector.spans if each.name == "run command"]

            [span] = await until(look, "the span of the command")
        [enqueue] = [each for each in collector.spans if each.name == "enqueue default"]
    async with Holdfast(url) as app:
        job = await app.get(id_)
    assert job is not None
    assert job.output is not None
    assert job.output.decode().strip() == f"00-{span.trace}-{span.id}-03"
    assert (span.trace, span.parent, span.links) == (enqueue.trace, enqueue.id, (enqueue.id,))
    assert span.attributes["error.type"] == "ExitCode"
