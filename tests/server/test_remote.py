"""The remote engine through a real server: workers, the command line, tokens, TLS, and kills."""

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.cli import run
from holdfast.conformance.contract.cases import a_job
from holdfast.core.model import JobFilter, LeaseRequest, Queue, State, Status
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.registry import open_engine
from holdfast.errors import (
    ConfigError,
    EngineError,
    EngineUnavailable,
    Forbidden,
    Unauthenticated,
    Unsupported,
)
from tests.certificates import self_signed
from tests.cli.program import command, environment, run_program
from tests.server.server_process import ServerProcess, server_process

_TIMEOUT_S = 60
_APP = """
from holdfast import Holdfast

app = Holdfast()

@app.task(max_attempts=2)
def double(number):
    if number < 0:
        raise ValueError("below zero")
    return number * 2
"""


@contextlib.contextmanager
def a_worker(folder: Path, url: str, *flags: str) -> "Iterator[subprocess.Popen[str]]":
    (folder / "work.py").write_text(_APP)
    line = ["worker", "start", "--app", "work.py:app", "--url", url, "--processes", "1", *flags]
    popen = subprocess.Popen(
        command(*line),
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with popen:
        try:
            yield popen
        finally:
            popen.kill()


def with_token(process: ServerProcess, token: str) -> str:
    return process.url.replace("://", f"://{token}@")


async def ended(app: Holdfast, *ids: str) -> list[Any]:
    """The jobs, when all of them are over."""
    async with asyncio.timeout(_TIMEOUT_S):
        while True:
            jobs = [await app.get(id_) for id_ in ids]
            if all(job is not None and job.finished_at is not None for job in jobs):
                return jobs
            await asyncio.sleep(0.05)


async def test_a_worker_drains_a_queue_through_the_server(tmp_path: Path) -> None:
    """With a token that is for nothing else. Upkeep runs where the server is."""
    worker, producer = a_token_at(tmp_path, "consume"), a_token_at(tmp_path, "produce")
    with server_process(tmp_path, "--auth") as process:
        async with Holdfast(with_token(process, producer)) as app:
            ids = [(await app.enqueue("work:double", [n])).id for n in range(300)]
            (bad,) = [(await app.enqueue("work:double", [-1], backoff="constant(0s)")).id]
            with a_worker(tmp_path, with_token(process, worker), "--no-upkeep") as popen:
                jobs = await ended(app, *ids, bad)
                popen.send_signal(signal.SIGTERM)
                _, told = popen.communicate(timeout=_TIMEOUT_S)
            assert popen.returncode == 0, told
        assert [job.state for job in jobs] == [State.DONE] * 300 + [State.DEAD]
        assert jobs[299].result == b"598"


def a_token_at(folder: Path, scopes: str) -> str:
    line = ("token", "create", scopes, "--scopes", scopes, "--url", "sqlite:///jobs.db", "--json")
    return str(run_program(folder, *line).json["token"])


async def test_the_server_is_killed_under_a_worker_and_a_producer(tmp_path: Path) -> None:
    """Only the server is restarted, and no acknowledged job is lost."""
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(server_process(tmp_path))
        app = Holdfast(process.url)
        await app.open()
        await app.engine.declare(Queue(name="default", lease_ms=2_000))
        popen = stack.enter_context(a_worker(tmp_path, process.url))
        ids = [(await app.enqueue("work:double", [n])).id for n in range(50)]
        await ended(app, ids[0])
        for round_ in range(3):
            going_on = asyncio.create_task(enqueue_more(app, round_))
            await asyncio.sleep(0)
            process.popen.kill()
            process.popen.wait()
            port = process.address[1]
            process = stack.enter_context(await asyncio.to_thread(started, tmp_path, port))
            ids += await going_on
        jobs = await ended(app, *ids)
        assert popen.poll() is None
        assert {job.state for job in jobs} == {State.DONE}
        page = await app.find(JobFilter(queue="default"), limit=1_000)
        assert len(page.jobs) == len(set(ids)) == 50 + 3 * 20
        await app.close()


def started(folder: Path, port: int) -> contextlib.AbstractContextManager[ServerProcess]:
    """A server that listens already."""
    stack = contextlib.ExitStack()
    process = stack.enter_context(server_process(folder, port=port))

    @contextlib.contextmanager
    def held() -> Iterator[ServerProcess]:
        with stack:
            yield process

    return held()


async def enqueue_more(app: Holdfast, round_: int) -> list[str]:
    """A call with an unknown outcome is repeated with the same id."""
    ids = [f"more-{round_}-{n}" for n in range(20)]
    for n, id_ in enumerate(ids):
        receipt = await app.enqueue("work:double", [n], id=id_)
        assert receipt.status in (Status.NEW, Status.DUPLICATE)
    return ids


async def test_leases_of_a_disconnected_worker_are_released_at_once(tmp_path: Path) -> None:
    with server_process(tmp_path) as process:
        engine = open_engine(process.url)
        await engine.open()
        request = LeaseRequest(queues=("default",), wait_ms=30_000, worker="w")
        for number in range(20):
            waiting = asyncio.create_task(engine.lease(request))
            await asyncio.sleep(0.01 * (number % 3))
            waiting.cancel()
            enqueued = asyncio.create_task(engine.enqueue([a_job(f"j{number}")]))
            await asyncio.wait([waiting, enqueued])
            (lease,) = await engine.lease(request)
            assert lease.id == f"j{number}"
            done = Settlement(lease=lease, verdict=Complete())
            assert await engine.settle([done]) == [Outcome.SETTLED]
        await engine.close()


def test_the_command_line_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def cli(*line: str, url: str | None = None) -> str:
        monkeypatch.setenv("HOLDFAST_URL", url or process.url)
        code = run(list(line))
        out, err = capfd.readouterr()
        assert code == 0, (line, out, err)
        return out

    with server_process(tmp_path) as process:
        cli("queue", "create", "mail")
        cli("enqueue", '{"task": "send", "queue": "mail", "id": "a", "payload": 1}')
        Path("many.jsonl").write_text('{"task": "send", "id": "b"}\n')
        cli("enqueue", "--file", "many.jsonl")
        shown = cli("job", "list", "--json")
        assert shown == cli("job", "list", "--json", url="sqlite:///jobs.db")
        assert '"id": "a"' in cli("job", "show", "a", "--json")
        assert "no worker" in cli("job", "explain", "a")
        cli("job", "cancel", "a")
        cli("queue", "pause", "mail")
        cli("dlq", "list")
        cli("dlq", "groups")
        cli("schedule", "add", "tick", "--cron", "0 0 1 1 *", "--task", "send")
        assert "tick" in cli("schedule", "list")
        cli("worker", "list")
        cli("top", "--once")
        assert '"mail"' in cli("status", "--json")
        cli("config", "set", "max-retries", "5")
        cli("scaling", "--queue", "mail")
        cli("bench", "--jobs", "1000")
        assert "this machine's clock agrees" in cli("doctor")


async def test_commands_that_need_the_store_itself_are_refused(tmp_path: Path) -> None:
    with server_process(tmp_path) as process:
        async with Holdfast(process.url) as app:
            with pytest.raises(Unsupported, match="remote engine does not support backup"):
                await app.backup(tmp_path / "copy.db")
            with pytest.raises(Unsupported, match="within a transaction"):
                app.within(object())
            assert app.home.store.traits.shared
            assert app.place == process.url
        ran = run_program(
            tmp_path, "move-store", "--from", process.url, "--to", "sqlite:///other.db"
        )
        assert ran.code != 0
        assert "unsupported" in ran.err


async def test_a_token_with_the_right_scope_is_needed(tmp_path: Path) -> None:
    token = a_token_at(tmp_path, "produce")
    with server_process(tmp_path, "--auth") as process:
        with pytest.raises(Unauthenticated, match="HOLDFAST_TOKEN"):
            await open_engine(process.url).open()
        with pytest.raises(Unauthenticated, match="unknown, expired or revoked") as caught:
            await open_engine(with_token(process, "hf_hunter2_hunter2")).open()
        assert "hunter2" not in str(caught.value)
        async with Holdfast(with_token(process, token)) as app:
            await app.enqueue("t", 1)
            with pytest.raises(Forbidden):
                await app.engine.lease(LeaseRequest(queues=("default",)))
            assert "hf_" not in app.place


async def test_the_url_may_name_a_namespace(tmp_path: Path) -> None:
    with server_process(tmp_path, "--namespace", "other") as process:
        async with Holdfast(process.url) as one, Holdfast(f"{process.url}?namespace=other") as two:
            await one.enqueue("t", 1, id="a")
            await two.enqueue("t", 2, id="a")
            assert [(await app.get("a")).payload for app in (one, two)] == [b"1", b"2"]  # type: ignore[union-attr]
        with pytest.raises(Forbidden, match="unknown namespace"):
            await open_engine(f"{process.url}?namespace=unknown").open()


async def test_tls_is_verified_at_both_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engines.remote.engine._OPEN_RETRY_S_MAX", 0.0)
    authority, _ = self_signed(tmp_path, "authority")
    certificate, key = self_signed(tmp_path, "server", signer="authority")
    mine, mine_key = self_signed(tmp_path, "client", signer="authority")
    both = tmp_path / "both.pem"
    both.write_text(mine.read_text() + mine_key.read_text())
    flags = ("--tls-cert", str(certificate), "--tls-key", str(key))
    with server_process(tmp_path, *flags, "--tls-client-ca", str(authority)) as process:
        assert process.url.startswith("https:")
        with pytest.raises(EngineUnavailable, match="certificate is not trusted"):
            await open_engine(process.url).open()
        with pytest.raises(EngineError):
            await open_engine(f"{process.url}?ca={authority}").open()
        with pytest.raises(ConfigError, match="cannot be used"):
            await open_engine(f"{process.url}?ca={key}").open()
        async with Holdfast(f"{process.url}?ca={authority}&cert={both}") as app:
            await app.enqueue("t", 1)
            await app.enqueue("t", 2)
            assert len((await app.find(JobFilter())).jobs) == 2
