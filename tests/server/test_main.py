"""`holdfast serve` from start to stop: real processes, sockets and signals."""

import contextlib
import json
import re
import signal
import socket
import ssl
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.server.settings import ServerSettings
from tests.certificates import self_signed
from tests.cli.program import run_program
from tests.server.server_process import (
    TIMEOUT_S,
    ServerProcess,
    over_tls,
    read_all,
    read_until,
    request,
    server_process,
    server_process_with,
)
from tests.wait import wait_until

LEASE = json.dumps({"queues": ["default"], "limit": 1, "worker": "w", "wait": 20}).encode()
JOBS = json.dumps({"jobs": [{"task": "noop", "id": "kept"}]}).encode()
ENQUEUE = request("POST", "/v1/queues/default/jobs", JOBS)
READY = request("GET", "/readyz")


def status_of(said: bytes) -> int:
    return int(said.split(maxsplit=2)[1])


def body_of(said: bytes) -> bytes:
    """Whole, or this fails: nothing is missing at its end."""
    head, _, body = said.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        assert body.endswith(b"0\r\n\r\n"), said[-100:]
        return body
    [length] = re.findall(rb"(?i)content-length: (\d+)", head)
    assert len(body) == int(length)
    return body


@contextlib.contextmanager
def streams_and_waits(process: ServerProcess, count: int) -> Iterator[list[socket.socket]]:
    """Open connections of both sorts in turns, each of which has been taken on."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            stream = stack.enter_context(process.connect())
            stream.sendall(request("GET", "/v1/events"))
            read_until(stream, b"text/event-stream")
            wait = stack.enter_context(process.connect())
            wait.sendall(request("POST", "/v1/lease", LEASE))
            opened += [stream, wait]
        # A later request is answered: the earlier ones were read.
        assert process.get("/readyz")[0] == 200
        yield opened


def test_it_says_where_it_listens_and_is_alive_and_ready(tmp_path: Path) -> None:
    with server_process(tmp_path) as process:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", process.url)
        assert process.get("/healthz")[1]["status"] == "alive"
        assert process.get("/readyz") == (200, {"status": "ready", "partitions": None})
        said = process.exchange(READY).lower()
        assert b"\r\nserver:" not in said
        assert b"uvicorn" not in said
        process.popen.send_signal(signal.SIGTERM)
        out, err = process.popen.communicate(timeout=TIMEOUT_S)
    assert (process.popen.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_open_streams_and_waits_end_properly_when_it_is_told_to_stop(
    number: signal.Signals, tmp_path: Path
) -> None:
    with server_process(tmp_path, "--grace", "50s") as process:
        with streams_and_waits(process, 20) as opened, process.connect() as idle:
            idle.sendall(request("GET", "/healthz").replace(b"connection: close\r\n", b""))
            read_until(idle, b"alive")
            process.popen.send_signal(number)
            ends = [read_all(each) for each in opened]
            assert read_all(idle) == b""
        assert process.popen.wait(TIMEOUT_S) == 0
        _, err = process.popen.communicate()
    # They ended by themselves within the grace period: a warning would say if not.
    assert err == ""
    for stream, wait in zip(ends[::2], ends[1::2], strict=True):
        assert stream.endswith(b"0\r\n\r\n"), stream[-200:]
        assert status_of(wait) in (200, 503)
        assert json.loads(body_of(wait))


def test_so_they_do_without_the_faster_parser(tmp_path: Path) -> None:
    settings = ServerSettings(grace_ms=50_000)
    with server_process_with(settings, tmp_path, without_httptools=True) as process:
        with streams_and_waits(process, 5) as opened:
            process.popen.send_signal(signal.SIGTERM)
            ends = [read_all(each) for each in opened]
        assert process.popen.wait(TIMEOUT_S) == 0
    for stream, wait in zip(ends[::2], ends[1::2], strict=True):
        assert stream.endswith(b"0\r\n\r\n"), stream[-200:]
        assert json.loads(body_of(wait))


def test_what_was_asked_before_the_signal_is_answered(tmp_path: Path) -> None:
    """Half of a request has arrived when the server stops; the rest comes later."""
    with server_process(tmp_path) as process:
        with process.connect() as connection:
            connection.sendall(ENQUEUE[:-5])
            assert process.get("/healthz")[0] == 200
            process.popen.send_signal(signal.SIGTERM)
            wait_until_refused(process)
            connection.sendall(ENQUEUE[-5:])
            said = read_all(connection)
        assert status_of(said) == 201, said
        assert process.popen.wait(TIMEOUT_S) == 0
    shown = run_program(tmp_path, "job", "show", "kept", "--url", "sqlite:///jobs.db", "--json")
    assert shown.json["id"] == "kept"


def test_after_the_grace_period_requests_are_cut_off(tmp_path: Path) -> None:
    with server_process(tmp_path, "--grace", "300ms") as process:
        with process.connect() as slow:
            slow.sendall(ENQUEUE[:-5])
            assert process.get("/healthz")[0] == 200
            process.popen.send_signal(signal.SIGTERM)
            read_all(slow)
            assert process.popen.wait(TIMEOUT_S) == 0
        _, err = process.popen.communicate()
    assert "1 requests were not answered within the grace period" in err
    assert err.count("\n") == 1, err


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with server_process(tmp_path, "--grace", "1h") as process, process.connect() as slow:
        slow.sendall(ENQUEUE[:-5])
        assert process.get("/healthz")[0] == 200
        process.popen.send_signal(signal.SIGTERM)
        wait_until_refused(process)
        assert process.popen.poll() is None
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(TIMEOUT_S) == 0


def test_other_addresses_need_a_token(tmp_path: Path) -> None:
    with server_process(tmp_path, "--host", "0.0.0.0") as process:
        here = ServerProcess(process.url.replace("0.0.0.0", "127.0.0.1"), process.popen)
        assert here.get("/healthz")[0] == 200
        assert here.get("/v1/jobs")[0] == 401


def test_https_with_client_certificates(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "server")
    self_signed(tmp_path, "authority")
    mine, my_key = self_signed(tmp_path, "client", signer="authority")
    flags = ["--tls-cert", str(certificate), "--tls-key", str(key)]
    trusting = ssl.create_default_context(cafile=str(certificate))
    with server_process(tmp_path, *flags) as process:
        assert process.url.startswith("https://127.0.0.1:")
        assert status_of(said_over_tls(process, trusting)) == 200
        old = ssl.create_default_context(cafile=str(certificate))
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        assert said_over_tls(process, old) == b""
        assert b"HTTP/1.1 200" not in process.exchange(READY)
    with server_process(
        tmp_path, *flags, "--tls-client-ca", str(tmp_path / "authority.pem")
    ) as process:
        assert said_over_tls(process, trusting) == b""
        trusting.load_cert_chain(mine, my_key)
        assert status_of(said_over_tls(process, trusting)) == 200


def said_over_tls(process: ServerProcess, context: ssl.SSLContext) -> bytes:
    try:
        return over_tls(process, context, READY)
    except (ssl.SSLError, ConnectionError):
        return b""


def test_only_a_configured_proxy_is_trusted(tmp_path: Path) -> None:
    asked = request("GET", "/readyz", x_forwarded_for="203.0.113.7")
    for flags, peer in (([], "127.0.0.1"), (["--proxy", "127.0.0.1"], "203.0.113.7")):
        with server_process(tmp_path, "--access-log", *flags) as process:
            process.exchange(asked)
            process.popen.send_signal(signal.SIGTERM)
            _, err = process.popen.communicate(timeout=TIMEOUT_S)
        [line] = [each for each in err.splitlines() if "/readyz" in each]
        told = json.loads(line.partition(": ")[2])
        assert (told["method"], told["status"], told["peer"]) == ("GET", 200, peer)


@pytest.mark.parametrize("namespace", ["default", "shop"])
def test_the_server_runs_upkeep_of_every_namespace(namespace: str, tmp_path: Path) -> None:
    """An expired lease is returned by the server: there is no worker to do it."""
    url = ("--url", "sqlite:///jobs.db")
    scopes = ("--scopes", "produce,consume", "--namespace", namespace)
    ran = run_program(tmp_path, "token", "create", "t", *scopes, *url)
    assert ran.code == 0, ran
    mine = {"authorization": f"Bearer {ran.out.strip()}"}
    lease = {"queues": ["default"], "worker": "w", "wait": 20, "lease": 1}
    asked = request("POST", "/v1/lease", json.dumps(lease).encode(), **mine)
    with server_process(tmp_path, "--auth") as process:
        enqueued = process.exchange(request("POST", "/v1/queues/default/jobs", JOBS, **mine))
        assert status_of(enqueued) == 201, enqueued
        for attempt in (1, 2):
            [leased] = json.loads(body_of(process.exchange(asked)))["leases"]
            assert (leased["job"]["id"], leased["job"]["attempts"]) == ("kept", attempt)


def test_not_ready_while_the_store_does_not_answer(tmp_path: Path) -> None:
    with server_process(tmp_path) as process:
        for path in tmp_path.glob("jobs.db*"):
            path.rename(tmp_path / f"away-{path.name}")
        wait_until(lambda: process.get("/readyz")[0] == 503)
        said = process.get("/readyz")[1]
        assert said["error"]["code"] == "not_ready"
        assert process.get("/healthz")[0] == 200
        for path in sorted(tmp_path.glob("away-*"), reverse=True):
            path.rename(tmp_path / path.name.removeprefix("away-"))
        wait_until(lambda: process.get("/readyz")[0] == 200)


def test_the_server_ends_with_its_parent(tmp_path: Path) -> None:
    with server_process_with(ServerSettings(), tmp_path) as process:
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        assert process.popen.wait(TIMEOUT_S) == 0


def wait_until_refused(process: ServerProcess) -> None:
    """The server has seen the signal once it accepts no new connection."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        try:
            process.connect().close()
        except OSError:
            return
        time.sleep(0.01)
    raise AssertionError("it still listens")
