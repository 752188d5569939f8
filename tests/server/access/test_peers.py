"""Which local connections need no token, with a real second user."""

import contextlib
import json
import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.app.application import Holdfast
from holdfast.cli import serve
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.remote import RemoteEngine
from holdfast.errors import Unauthenticated
from holdfast.process import local_token_file
from holdfast.server.access import peers
from holdfast.server.access.peers import (
    LocalUsers,
    Owner,
    OwnerSource,
    SocketDiagnostics,
    SocketTables,
    local_users,
    owner_of,
    working_sources,
)
from holdfast.server.application import AsgiApplication
from holdfast.server.settings import ServerSettings
from holdfast.server.state import ServerState
from tests.certificates import self_signed
from tests.cli.program import run_program
from tests.server.direct_server import direct_server
from tests.server.loop_server import LoopServer
from tests.server.other_user import (
    OTHER_UID,
    connection_of_other_user,
    exchange_as_other_user,
)
from tests.server.server_process import (
    request,
    server_process,
    server_process_with,
)

ENQUEUE = json.dumps({"jobs": [{"task": "t"}]}).encode()
CANNOT_TELL = (
    "from holdfast.server.access import peers; peers.working_sources = lambda address: [];"
    "from holdfast.server.main import main; main()"
)


@pytest.fixture(params=[SocketDiagnostics, SocketTables])
def source(request: pytest.FixtureRequest) -> OwnerSource:
    made: OwnerSource = request.param()
    return made


@contextlib.contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as made:
        made.settimeout(60)
        yield made


def accepted(at: socket.socket) -> socket.socket:
    return at.accept()[0]


def status_of(answer: bytes) -> int:
    return int(answer.split()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1"])
def test_the_kernel_names_the_user_of_a_connection(source: OwnerSource, host: str) -> None:
    with listening(host) as at:
        address = at.getsockname()[:2]
        with socket.create_connection(address), accepted(at) as mine:
            assert owner_of(mine, [source]) == os.geteuid()
        with connection_of_other_user(address), accepted(at) as theirs:
            uid = owner_of(theirs, [source])
            assert uid not in (None, 0, os.geteuid())
            assert os.geteuid() != 0 or uid == OTHER_UID


def test_an_ipv4_connection_of_an_ipv6_socket_is_found(source: OwnerSource) -> None:
    with listening() as at, socket.socket(socket.AF_INET6) as mapped:
        mapped.connect(("::ffff:127.0.0.1", at.getsockname()[1]))
        with accepted(at) as mine:
            assert owner_of(mine, [source]) == os.geteuid()


def test_an_abandoned_connection_has_no_owner(source: OwnerSource) -> None:
    """The kernel reports it as root's: a user could send a request and leave before the answer."""
    with listening() as at:
        with connection_of_other_user(at.getsockname(), b"POST / HTTP/1.1\r\n\r\n"):
            pass
        with accepted(at) as left:
            assert left.recv(4) == b"POST"
            assert owner_of(left, [source]) is None
        with socket.create_connection(at.getsockname()):
            pass
        with accepted(at) as own_left:
            assert owner_of(own_left, [source]) is None


def test_a_half_closed_connection_still_has_its_owner(source: OwnerSource) -> None:
    with listening() as at, socket.create_connection(at.getsockname()) as client:
        client.shutdown(socket.SHUT_WR)
        with accepted(at) as mine:
            assert owner_of(mine, [source]) == os.geteuid()


def test_a_reset_connection_does_not_get_the_owner_of_the_next_on_its_port(
    source: OwnerSource,
) -> None:
    with listening() as at:
        # An address that nothing else on the machine uses, so that the port is free afterwards.
        first = socket.create_connection(at.getsockname(), source_address=("127.77.0.1", 0))
        first.sendall(b"POST")
        name = first.getsockname()
        first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        first.close()
        again = socket.create_connection(at.getsockname(), source_address=name)
        with again, accepted(at) as reset, accepted(at) as next_one:
            assert owner_of(reset, [source]) is None
            assert next_one.getpeername() == name
            assert owner_of(next_one, [source]) == os.geteuid()


class Told:
    """A source with a given answer, and a connection to ask about."""

    def __init__(self, answer: Owner | OSError | None, state: int = 1) -> None:
        self._answer = answer
        self._state = state

    def owner(self, local: tuple[str, int], remote: tuple[str, int]) -> Owner | None:
        if isinstance(self._answer, OSError):
            raise self._answer
        return self._answer

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 2

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    def getsockopt(self, *_: int) -> bytes:
        return bytes([self._state])


@pytest.mark.parametrize(
    ("answer", "is_admitted"),
    [
        (Owner(1000, 1), True),
        (Owner(0, 1), True),
        (Owner(1001, 1), False),
        (Owner(65_534, 1), False),
        (None, False),
        # Connecting, listening, in TIME-WAIT: not the other end of this connection.
        (Owner(1000, 2), False),
        (Owner(1000, 10), False),
        (Owner(0, 6), False),
        (OSError(), False),
    ],
)
def test_only_the_own_user_and_root_are_admitted(
    answer: Owner | OSError | None, is_admitted: bool
) -> None:
    told = Told(answer)
    assert LocalUsers([told], uid=1000).admits(told) is is_admitted
    assert LocalUsers([told], uid=1000).admits(Told(answer, state=7)) is False


def test_a_failed_question_is_asked_in_the_next_way() -> None:
    failing, good = Told(OSError("no netlink")), Told(Owner(7, 1))
    assert owner_of(good, [failing, good]) == 7
    assert owner_of(good, [failing]) is None


def test_a_user_that_looks_like_others_cannot_be_told_from_them() -> None:
    """In a user namespace, every user that is not mapped looks like the overflow user."""
    code = (
        "from holdfast.server.access.peers import working_sources as w; print(len(w('127.0.0.1')))"
    )
    ran = subprocess.run(
        ["unshare", "--user", "--", sys.executable, "-c", code], capture_output=True, check=False
    )
    if ran.returncode != 0:
        pytest.skip(f"no user namespace can be made here: {ran.stderr.decode()}")
    assert ran.stdout == b"0\n"
    assert len(working_sources("127.0.0.1")) == len(working_sources("::1")) == 2


@pytest.mark.parametrize("parser", ["httptools", "h11"])
def test_another_user_needs_a_token(tmp_path: Path, parser: str) -> None:
    # A server reads tokens at most once a second: this one is there before it starts.
    line = ("token", "create", "t", "--scopes", "operate", "--url", "sqlite:///jobs.db", "--json")
    made = run_program(tmp_path, *line).json
    with server_process_with(
        ServerSettings(), tmp_path, without_httptools=parser == "h11"
    ) as process:
        assert process.post("/v1/queues/default/jobs", {"jobs": [{"task": "t"}]})[0] == 201
        for data in (
            request("GET", "/v1/jobs"),
            request("GET", "/v1/status"),
            request("POST", "/v1/queues/default/jobs", ENQUEUE),
            request("POST", "/v1/engine/lease"),
            request("DELETE", "/v1/queues/default"),
        ):
            answer = exchange_as_other_user(process.address, data)
            assert status_of(answer) == 401
            assert b"its own user" in answer
        assert status_of(exchange_as_other_user(process.address, request("GET", "/healthz"))) == 200
        with_token = request("GET", "/v1/jobs", authorization=f"Bearer {made['token']}")
        assert status_of(exchange_as_other_user(process.address, with_token)) == 200


def test_requests_of_one_connection_share_one_question(tmp_path: Path) -> None:
    with server_process_with(ServerSettings(), tmp_path) as process, process.connect() as client:
        head = "GET /v1/queues HTTP/1.1\r\nhost: localhost\r\n"
        client.sendall(f"{head}\r\n{head}connection: close\r\n\r\n".encode())
        answers = b"".join(iter(lambda: client.recv(65_536), b""))
    assert answers.count(b"HTTP/1.1 200") == 2


def test_another_user_needs_a_token_over_ipv6_and_tls(tmp_path: Path) -> None:
    with server_process(tmp_path, "--host", "::1") as process:
        assert process.get("/v1/jobs")[0] == 200
        assert status_of(exchange_as_other_user(process.address, request("GET", "/v1/jobs"))) == 401
    certificate, key = self_signed(tmp_path, "server")
    with server_process(tmp_path, "--tls-cert", str(certificate), "--tls-key", str(key)) as process:
        url = f"{process.url}?ca={certificate}"
        assert run_program(tmp_path, "list", "--url", url, "--json").json == []


def test_no_auth_admits_every_local_user_and_says_so(tmp_path: Path) -> None:
    with server_process(tmp_path, "--no-auth") as process:
        assert status_of(exchange_as_other_user(process.address, request("GET", "/v1/jobs"))) == 200
        process.popen.terminate()
        errors = process.popen.communicate()[1]
    assert "every user of this machine" in errors
    assert "--no-auth" in errors
    with server_process(tmp_path) as process:
        process.popen.terminate()
        assert process.popen.communicate()[1] == ""


async def test_a_request_without_a_known_user_needs_a_token() -> None:
    async with direct_server() as at:
        assert (await at.ask("GET", "/v1/queues")).status == 200
        at.asks_as_own_user = False
        assert (await at.ask("GET", "/v1/queues")).status == 401
        token = await at.token("operate")
        assert (await at.ask("GET", "/v1/queues", token=token)).status == 200
        # A proxy of the own user adds a header: the request is not the user's own.
        at.asks_as_own_user = True
        assert (await at.ask("GET", "/v1/queues", via="1.1 proxy")).status == 401


@pytest.fixture
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "holdfast"


def test_the_file_of_a_token_is_private_and_goes_with_the_server(
    runtime_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with listening() as at:
        path = runtime_folder / f"127.0.0.1-{at.getsockname()[1]}.token"
        runtime_folder.mkdir()
        path.write_text("of a server that was killed")
        with local_users(ServerSettings(), at) as users:
            assert users is not None
            assert users.token is None
            assert not path.exists()
        monkeypatch.setattr(peers, "working_sources", lambda _address: [])
        seen = set()
        for _ in range(2):
            path.write_text("of a server that was killed")
            with local_users(ServerSettings(), at) as users:
                assert users is not None
                assert users.token == path.read_text()
                assert users.accepts(users.token)
                assert not users.accepts("hf_x")
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
                seen.add(users.token)
            assert list(runtime_folder.iterdir()) == []
        assert len(seen) == 2
        assert str(path) in caplog.text
        assert not any(token in caplog.text for token in seen)
        with local_users(ServerSettings(auth=True), at) as users:
            assert users is None, "this system does not tell users apart"


def test_a_token_that_cannot_be_written_leaves_the_server_closed(
    runtime_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peers, "working_sources", lambda _address: [])
    runtime_folder.write_text("not a folder")
    with listening() as at, local_users(ServerSettings(), at) as users:
        assert users is None
    assert "holdfast token create" in caplog.text


def test_without_a_runtime_folder_of_its_own_the_token_is_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("", "relative", str(tmp_path / "missing")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        found = local_token_file("::1", 7433)
        assert found == tmp_path / ".local/state/holdfast/::1-7433.token"
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert local_token_file("::1", 7433).parent == tmp_path / ".local/state/holdfast"


async def test_our_programs_find_the_token_by_themselves(
    runtime_folder: Path, tmp_path: Path
) -> None:
    with server_process_with(ServerSettings(), tmp_path, code=CANNOT_TELL) as process:
        assert process.get("/v1/queues")[0] == 401
        _, port = process.address
        for host in ("127.0.0.1", "localhost"):
            engine = RemoteEngine(f"http://{host}:{port}")
            await engine.open()
            assert len(await engine.queues()) == 1
            await engine.close()
        assert run_program(tmp_path, "list", "--url", process.url, "--json").json == []
        [file] = runtime_folder.iterdir()
        file.chmod(0o644)
        with pytest.raises(Unauthenticated):
            await RemoteEngine(process.url).open()
        file.chmod(0o600)
        # An explicit token is used as it is.
        with pytest.raises(Unauthenticated):
            await RemoteEngine(process.url, token="hf_other").open()


def test_the_access_key_of_the_token_is_printed(
    runtime_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(peers, "working_sources", lambda _address: [])
    with listening() as at:
        url = f"http://127.0.0.1:{at.getsockname()[1]}"
        assert serve.local_access_key(url) == {}
        with local_users(ServerSettings(), at) as users:
            key = serve.local_access_key(url)
            assert users is not None
            assert users.token is not None
            assert users.secret_of(key["access_key_id"]) == key["secret_access_key"]
            assert users.secret_of("AKIAIOSFODNN7EXAMPLE") is None
            serve.print_access_key(key)
            [_, id_, secret] = capsys.readouterr().out.splitlines()
            assert id_.strip() == f"AWS_ACCESS_KEY_ID={key['access_key_id']}"
            assert secret.strip() == f"AWS_SECRET_ACCESS_KEY={key['secret_access_key']}"
            [file] = runtime_folder.iterdir()
            file.chmod(0o644)
            assert serve.local_access_key(url) == {}
        serve.print_access_key(serve.local_access_key(url))
        assert capsys.readouterr().out == ""
    assert LocalUsers([]).secret_of(key["access_key_id"]) is None


async def test_a_token_that_changed_is_read_again(
    runtime_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "working_sources", lambda _address: [])
    loop_server = LoopServer()
    loop_server.asks_as_own_user = False
    async with Holdfast(engine=MemoryEngine()) as app:
        server = ServerState(app=app)
        loop_server.only_app = AsgiApplication(server)
        engine = RemoteEngine(loop_server.place)
        async with loop_server.running():
            for _ in range(2):
                with local_users(ServerSettings(), loop_server._socket) as server.local_users:
                    await engine.open()
                    assert len(await engine.queues()) == 1
            server.local_users = None
            with pytest.raises(Unauthenticated):
                await engine.queues()
            # The next server can tell users apart, and refuses the token of the last one.
            loop_server.asks_as_own_user = True
            assert len(await engine.queues()) == 1
            await engine.close()
