"""Hostile clients are refused or cut off, and the server keeps serving others.

Both parsers are tested: httptools, and h11 without it.
"""

import contextlib
import http.client
import json
import re
import resource
import select
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from statistics import median

import msgspec
import pytest

from bench.attackers import REFUSED, AttackOrder, AttackReport
from holdfast.server.settings import ServerSettings
from tests.server.server_process import (
    TIMEOUT_S,
    ServerProcess,
    read_all,
    read_until,
    request,
    server_process_with,
)
from tests.sources import ROOT
from tests.wait import wait_until

RSS_MB_MAX = 300
HURRIED = ServerSettings(
    head_ms_max=900, request_ms_max=1_500, slow_ms_max=2_000, keep_alive_ms=400
)
PATIENT = ServerSettings(
    head_ms_max=60_000, request_ms_max=60_000, slow_ms_max=60_000, keep_alive_ms=60_000
)
JOBS = {"jobs": [{"task": "noop"}]}


@pytest.fixture(params=["quick", "plain"], scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Its time limits are so long that even a busy machine sends every request in time."""
    folder = tmp_path_factory.mktemp(request.param)
    with unharmed_server(PATIENT, folder, parser=request.param) as process:
        yield process


@pytest.fixture(params=["quick", "plain"], scope="module")
def hurried_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Its time limits are short: on a busy machine it may refuse any request with 408."""
    folder = tmp_path_factory.mktemp(f"hurried-{request.param}")
    with unharmed_server(HURRIED, folder, parser=request.param) as process:
        yield process


@contextlib.contextmanager
def unharmed_server(
    settings: ServerSettings, folder: Path, *, parser: str
) -> Iterator[ServerProcess]:
    """A server that clients cannot make fail, or grow large."""
    with server_process_with(settings, folder, without_httptools=parser == "plain") as process:
        yield process
        assert process.get("/healthz")[0] in (200, 408)
        assert process.peak_mb < RSS_MB_MAX
        process.popen.kill()
        _, err = process.popen.communicate()
        assert "Traceback" not in err, err[-3000:]


def statuses(said: bytes) -> list[int]:
    return [int(each) for each in re.findall(rb"HTTP/1\.1 (\d{3}) ", said)]


HEAD = b"POST /v1/queues/default/jobs HTTP/1.1\r\nhost: localhost\r\n"
IN_JSON = HEAD + b"content-type: application/json\r\n"
CHUNKED = IN_JSON + b"transfer-encoding: chunked\r\n\r\n"
HIDDEN = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: y\r\n\r\n"
MALFORMED = {
    "nothing of HTTP": b"\x00\x01\x02\xff\xfe hello\r\n\r\n",
    "a TLS hello": bytes.fromhex("1603010200010001fc0303") + bytes(200) + b"\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a version that is none": b"GET /healthz HTTP/9.9\r\nhost: localhost\r\n\r\n",
    "no version": b"GET /healthz\r\nhost: localhost\r\n\r\n",
    "a method that is none": b"G@T /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nhost: other\r\n\r\n",
    "a zero byte in the path": b"GET /healthz\x00 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a zero byte in a header": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: a\x00b\r\n\r\n",
    "a header without a colon": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nnothing\r\n\r\n",
    "a space before the colon": b"GET /healthz HTTP/1.1\r\nhost : localhost\r\n\r\n",
    "a header without a name": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n: x\r\n\r\n",
    "a length below zero": IN_JSON + b"content-length: -1\r\n\r\n",
    "a length that is no number": IN_JSON + b"content-length: ten\r\n\r\n",
    "two lengths": IN_JSON + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    "a length beyond all": IN_JSON + b"content-length: 99999999999999999999999\r\n\r\n{}",
    "a large length": IN_JSON + b"content-length: 99999999999\r\n\r\n{}",
    "an unknown encoding": IN_JSON + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked not last": IN_JSON + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a length and chunks": IN_JSON
    + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    + HIDDEN,
    "chunks and a length": IN_JSON
    + b"transfer-encoding: chunked\r\ncontent-length: 60\r\n\r\n0\r\n\r\n"
    + HIDDEN,
    "a chunk's size that is none": CHUNKED + b"zz\r\nabc\r\n0\r\n\r\n",
    "a chunk's size below zero": CHUNKED + b"-1\r\nabc\r\n0\r\n\r\n",
    "a chunk's size beyond all": CHUNKED + b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "a chunk longer than it says": CHUNKED + b"1\r\nabc\r\n0\r\n\r\n",
    "a chunk that ends wrongly": CHUNKED + b"3\r\nabcXX0\r\n\r\n",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed_requests_are_refused_and_the_connection_closed(
    data: bytes, hurried_server: ServerProcess
) -> None:
    said = hurried_server.exchange(data)
    assert statuses(said) in ([], [400], [403], [408], [413], [422]), said[:300]
    assert b"alive" not in said, "what was hidden behind it was heard"
    assert hurried_server.get("/healthz")[0] in (200, 408)


@pytest.mark.parametrize(
    "encoding", ["Chunked", "chunked, chunked", "gzip, chunked", "identity", "", "chunked;q=1"]
)
def test_any_transfer_encoding_but_chunked_is_refused(encoding: str, server: ServerProcess) -> None:
    head = IN_JSON + f"transfer-encoding: {encoding}\r\n\r\n".encode()
    said = server.exchange(head + b"0\r\n\r\n" + HIDDEN)
    assert statuses(said) == [400], said[:300]
    twice = b"transfer-encoding: chunked\r\n" * 2
    assert statuses(server.exchange(IN_JSON + twice + b"\r\n0\r\n\r\n")) == [400]


BODY = json.dumps(JOBS).encode()
BY_CHUNK = [
    # Extensions, and whether they are within the bound.
    ([1_000], True),
    ([1_100], False),
    ([40] * 20, True),
    ([100] * 20, False),
    ([0] * 20 + [1_100], False),
]


@pytest.mark.parametrize(("extensions", "is_good"), BY_CHUNK)
@pytest.mark.parametrize("size", [100_000, 1_000, 7, 1])
def test_extensions_of_chunks_are_bounded(
    extensions: list[int], is_good: bool, size: int, server: ServerProcess
) -> None:
    """However the bytes arrive, and whatever comes before and after a good body."""
    last = len(extensions) - 1
    parts = [BODY[at : at + 1] for at in range(last)]
    parts.append(BODY[last:])
    chunks = b"".join(
        b"%x;%b\r\n%b\r\n" % (len(part), b"a" * length, part)
        for part, length in zip(parts, extensions, strict=True)
    )
    trailers = b"x: " + b"y" * 2_000 + b"\r\n"
    sized = IN_JSON + b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)
    head = CHUNKED.replace(b"\r\n\r\n", b"\r\nx-after: the encoding\r\n\r\n")
    data = head + chunks + b"0\r\n" + trailers + b"\r\n" + sized
    wanted = [400]
    if is_good:
        data, wanted = sized + data, [201, 201, 201]
    with server.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(data), size):
            try:
                connection.sendall(data[at : at + size])
            except ConnectionError:
                break
        said = b""
        while len(statuses(said)) < len(wanted):
            part = connection.recv(65_536)
            assert part, said[:1_000]
            said += part
        assert statuses(said) == wanted


def test_chunks_are_read_whatever_their_size(server: ServerProcess) -> None:
    """One byte each, with an extension to each; and headers behind the body count for nothing."""
    body = json.dumps(JOBS).encode()
    tiny = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in body)
    behind = b"host: evil\r\nauthorization: Bearer x\r\n"
    with server.connect() as connection:
        connection.sendall(CHUNKED + tiny + b"0\r\n" + behind + b"\r\n")
        assert statuses(read_until(connection, b"\r\n\r\n")) == [201]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(CHUNKED + b"1;" + b"a" * 2_000_000 + b"\r\nx\r\n0\r\n\r\n", id="extension"),
        pytest.param(
            CHUNKED + b"0\r\n" + b"".join(b"x%d: y\r\n" % n for n in range(50_000)) + b"\r\n",
            id="headers behind",
        ),
        pytest.param(CHUNKED + b"1\r\nx\r\n" * 500_000, id="without end"),
    ],
)
def test_chunked_bodies_are_bounded(data: bytes, hurried_server: ServerProcess) -> None:
    said = hurried_server.exchange(data)
    assert statuses(said) in ([], [400], [408], [413], [422], [431]), said[:300]
    assert hurried_server.get("/healthz")[0] in (200, 408)


LARGE = {
    "10,000 headers": (
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"
        + b"".join(b"x-%d: y\r\n" % n for n in range(10_000))
        + b"\r\n"
    ),
    "101 headers": (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 100 + b"\r\n"),
    "a header of 1 MB": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 1_000_000,
    "a header's name of 1 MB": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"y" * 1_000_000,
    "a queue's name of 1 MB": request("GET", f"/v1/queues/{'q' * 1_000_000}"),
    "a query of 1 MB": request("GET", f"/v1/jobs?queue={'q' * 1_000_000}"),
    "a method of 1 MB": b"X" * 1_000_000,
}


@pytest.mark.parametrize("data", LARGE.values(), ids=LARGE)
def test_heads_that_are_too_large_are_refused(data: bytes, server: ServerProcess) -> None:
    said = server.exchange(data)
    assert statuses(said) in ([], [400], [413], [414], [431]), said[:300]
    assert server.get("/healthz")[0] == 200


def test_names_of_a_megabyte_in_a_body_are_refused(server: ServerProcess) -> None:
    name = "q" * 1_000_000
    job = {"task": "noop", "queue": name}
    for path, body in (
        ("/v1/jobs", {"jobs": [job]}),
        ("/v1/lease", {"queues": [name]}),
        ("/v1/jobs", {"jobs": [{"task": name}]}),
    ):
        status, said = server.post(path, body)
        assert 400 <= status < 500
        assert len(json.dumps(said)) < 2_000


@cache
def bomb() -> bytes:
    """200 MB of zeros."""
    packer, block = zlib.compressobj(9, wbits=31), bytes(20_000_000)
    return b"".join([packer.compress(block) for _ in range(10)]) + packer.flush()


def test_a_gzip_bomb_is_not_unpacked(server: ServerProcess) -> None:
    asked = request("POST", "/v1/queues/default/jobs", bomb(), content_encoding="gzip")
    said = server.exchange(asked)
    assert statuses(said) == [415], said[:300]


def test_a_client_that_sends_too_much_can_read_the_error(server: ServerProcess) -> None:
    """Like most clients, these send all of it first and read then."""
    large = b"x" * 40_000_000
    for body in (large, iter([large[:1_000_000]] * 40)):
        client = http.client.HTTPConnection(*server.address, timeout=TIMEOUT_S)
        with contextlib.closing(client):
            headers = {"content-type": "application/json", "connection": "close"}
            client.request("POST", "/v1/queues/default/jobs", body, headers)
            answer = client.getresponse()
            assert (answer.status, json.load(answer)["error"]["code"]) == (413, "too_large")


@pytest.mark.parametrize("path", ["/v1/queues/default/jobs", "/v1/nothing"])
def test_an_endless_body_is_cut_off(path: str, tmp_path: Path) -> None:
    part = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    with server_process_with(ServerSettings(body_max=1_000_000), tmp_path) as process:
        with process.connect() as connection:
            connection.sendall(CHUNKED.replace(b"/v1/queues/default/jobs", path.encode()))
            with pytest.raises(ConnectionError):
                connection.sendall(part * 1_000)
        assert process.get("/healthz")[0] == 200


def test_slow_headers_are_not_waited_for(hurried_server: ServerProcess) -> None:
    """Fifty at once, each with a line now and then, and no end."""

    def drip(_number: int) -> bytes:
        with hurried_server.connect() as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n")
            return dripped(connection, lambda: b"x: y\r\n")

    with ThreadPoolExecutor(50) as pool:
        said = list(pool.map(drip, range(50)))
        assert hurried_server.get("/healthz")[0] in (200, 408)
    assert {tuple(statuses(each)) for each in said} <= {(), (408,)}
    assert any(statuses(each) == [408] for each in said)


def test_a_silent_connection_is_closed(hurried_server: ServerProcess) -> None:
    assert statuses(hurried_server.exchange(b"")) in ([], [408])


def test_blank_lines_do_not_keep_a_connection_open(hurried_server: ServerProcess) -> None:
    with hurried_server.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        read_until(connection, b"alive")
        assert statuses(dripped(connection, lambda: b"\r\n")) in ([], [400], [408])


def test_a_slow_body_is_not_waited_for(hurried_server: ServerProcess) -> None:
    with hurried_server.connect() as connection:
        connection.sendall(IN_JSON + b"content-length: 100000\r\n\r\n")
        assert statuses(dripped(connection, lambda: b" ")) == [408]


def test_the_memory_of_all_bodies_is_bounded(hurried_server: ServerProcess) -> None:
    """Sixty clients send thirty megabytes each, all but the last byte."""
    part = b" " * 1_000_000

    def flood(_number: int) -> bytes:
        with hurried_server.connect() as connection:
            try:
                connection.sendall(IN_JSON + b"content-length: 30000001\r\n\r\n")
                for _ in range(30):
                    connection.sendall(part)
            except OSError:
                pass
            return read_all(connection)

    with ThreadPoolExecutor(60) as pool:
        said = list(pool.map(flood, range(60)))
    assert {tuple(statuses(each)) for each in said} <= {(), (408,), (503,)}
    assert hurried_server.peak_mb < RSS_MB_MAX
    assert hurried_server.post("/v1/queues/default/jobs", JOBS)[0] in (201, 408)


def test_connections_beyond_the_maximum_are_refused(tmp_path: Path) -> None:
    with server_process_with(
        ServerSettings(connections_max=20, head_ms_max=60_000), tmp_path
    ) as process:
        held = [process.connect() for _ in range(20)]
        # Once this one is answered, the earlier ones were accepted.
        assert statuses(process.exchange(b"")) == [503]
        for each in held:
            each.close()
        wait_until(lambda: statuses(process.exchange(request("GET", "/healthz"))) == [200])


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("streams", "kinds"), [(10_000, ()), (2_000, REFUSED)], ids=["10,000 idle streams", "all"]
)
def test_others_are_served_during_an_attack(
    streams: int,
    kinds: tuple[str, ...],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """All of one namespace, which by default may hold half as many. How much slower the others get
    is told, and not judged: no machine that tests are run on is quiet."""
    streams = min(streams, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 2_000)
    with server_process_with(ServerSettings(streams_max=20_000), tmp_path) as process:
        alone_ms = [asked_ms(process) for _ in range(40)]
        order = AttackOrder(port=process.address[1], kinds=kinds, streams=streams)
        strangers = subprocess.Popen(
            [sys.executable, "-m", "bench.attackers"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with strangers:
            begun = told_by(strangers, order)
            beside_ms = [asked_ms(process) for _ in range(40)]
            rss_mb = process.rss_mb
            told = told_by(strangers, order)
            assert strangers.stdin is not None
            strangers.stdin.close()
        ratio = median(beside_ms) / median(alone_ms)
        print(f"{begun.streams} idle streams: {rss_mb:.0f} MB, others {ratio:.2f}x; {told.answers}")
        record_property("rss_mb", rss_mb)
        record_property("ratio", ratio)
        assert len(beside_ms) == len(alone_ms)
        assert begun.streams == told.streams == streams
        assert set(told.answers) <= {0, 400, 408, 413, 414, 415, 431, 503}
        assert rss_mb < RSS_MB_MAX
        # All are let go when their clients are.
        wait_until(lambda: len(list(Path(f"/proc/{process.popen.pid}/fd").iterdir())) < 100)
        assert process.get("/readyz")[0] == 200


def told_by(strangers: "subprocess.Popen[bytes]", order: AttackOrder) -> AttackReport:
    assert strangers.stdin is not None
    assert strangers.stdout is not None
    strangers.stdin.write(msgspec.json.encode(order) + b"\n")
    strangers.stdin.flush()
    return msgspec.json.decode(strangers.stdout.readline(), type=AttackReport)


def asked_ms(process: ServerProcess) -> float:
    """A job goes in, and then how long it takes to read: the disk that others use is not timed."""
    assert process.post("/v1/queues/default/jobs", JOBS)[0] == 201
    begun = time.perf_counter()
    assert process.get("/v1/queues/default")[0] == 200
    return (time.perf_counter() - begun) * 1000


def dripped(connection: socket.socket, drop: Callable[[], bytes]) -> bytes:
    """Send a little at a time until the server closes; return its answer."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        if select.select([connection], [], [], 0.1)[0]:
            return read_all(connection)
        try:
            connection.sendall(drop())
        except OSError:
            return b""
    raise AssertionError("it is still waited for")
