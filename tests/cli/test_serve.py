"""`holdfast serve` and `holdfast up`: invalid flags, and the server that runs."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from holdfast.cli import serve
from holdfast.server.http.listener import listen
from holdfast.server.settings import ServerSettings
from tests.certificates import self_signed
from tests.cli.program import Cli, run_program
from tests.cli.test_up import last_line, program, users_of
from tests.server.server_process import TIMEOUT_S, ServerProcess


def test_a_port_in_use_is_reported_with_a_remedy(cli: Cli, tmp_path: Path) -> None:
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
        (["--host", "0.0.0.0", "--no-auth"], "can be reached from other machines"),
        (["--host", "::", "--no-auth"], "can be reached from other machines"),
        (["--no-auth", "--allow-host", "jobs.internal"], "cannot be combined with --allow-host"),
        (["--host", "192.0.2.1"], "is not an address of this machine"),
        (["--port", "70000"], "expected 0 to 65535"),
        (["--proxy", "proxy.internal"], "expected an address or network"),
        (["--proxy", "*"], "expected an address or network"),
        (["--tls-key", "key.pem"], "--tls-cert"),
        (["--tls-cert", "missing.pem"], "missing.pem"),
        (["--grace", "soon"], "soon"),
        (["--body-max", "1"], "--body-max must be"),
        (["--allow-host", "https://jobs.internal"], "without https://"),
        (["--allow-host", "jobs.internal:7433"], "without a port"),
        (["--allow-origin", "*"], "expected an origin"),
        (["--allow-origin", "https://tools.test/"], "expected an origin"),
        (["--archive", "missing/old.jsonl"], "there is no folder"),
    ],
)
def test_invalid_settings_are_refused_before_anything_starts(
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
def test_hosts_and_origins_are_normalized(hosts: tuple[str, ...], origins: tuple[str, ...]) -> None:
    listen(ServerSettings(port=0, hosts=hosts, origins=origins)).close()


def test_a_memory_store_warns_that_jobs_are_lost(tmp_path: Path) -> None:
    with program(tmp_path, "serve", "--port", "0", "--url", "memory:") as process:
        last_line(process, "holdfast")
        process.terminate()
        assert "they are lost when this process ends" in process.communicate()[1]


def test_up_serves_http_and_restarts_a_killed_server(tmp_path: Path) -> None:
    with program(tmp_path, "up", "--count", "1", "--json") as up:
        url = json.loads(last_line(up, "{"))["server"]
        process = ServerProcess(url, up)
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
        assert up.wait(TIMEOUT_S) == 0
    assert users_of(tmp_path) == []


def test_up_takes_a_free_port_unless_one_is_given(cli: Cli, tmp_path: Path) -> None:
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
                assert ServerProcess(one, first).get("/readyz")[0] == 200
                assert ServerProcess(other, second).get("/readyz")[0] == 200


def test_up_without_a_server(tmp_path: Path) -> None:
    with program(tmp_path, "up", "--count", "1", "--no-serve", "--json") as up:
        assert json.loads(last_line(up, "{"))["server"] is None


def is_server(pid: int) -> bool:
    try:
        return b"holdfast.server.main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_missing_package_is_reported_with_a_remedy(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda _name: None)
    for line in (["serve"], ["up", "--port", "7433"]):
        ran = cli(*line)
        assert ran.code == 2
        assert "pip install 'holdfast[server]'" in ran.err
    # A server that was not asked for is left out.
    assert serve.listener_for_up(None) is None
    assert "pip install 'holdfast[server]'" in capfd.readouterr().err


def test_an_encrypted_key_is_refused(cli: Cli, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "server")
    locked, other = tmp_path / "locked.key", self_signed(tmp_path, "other")[1]
    line = ["openssl", "pkey", "-in", str(key), "-out", str(locked), "-aes256", "-passout"]
    subprocess.run([*line, "pass:secret"], check=True, capture_output=True)
    for wrong, says in ((locked, "encrypted"), (other, "cannot load"), (tmp_path, "cannot")):
        ran = cli("serve", "--tls-cert", str(certificate), "--tls-key", str(wrong))
        assert ran.code == 2
        assert says in ran.err
        assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (["--cloudwatch", "AWS/SQS"], "do not begin with AWS/"),
        (["--cloudwatch", "Holdfast", "--no-upkeep"], "leave out --no-upkeep"),
    ],
)
@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["worker", "start"]])
def test_a_wrong_cloudwatch_namespace_is_refused(
    cli: Cli, command: list[str], line: list[str], error: str
) -> None:
    ran = cli(*command, *line)
    assert ran.code == 2
    assert error in ran.err


def test_the_dashboard_and_changes_can_be_switched_off(cli: Cli) -> None:
    settings = serve.ServeFlags(dashboard=False, read_only=True).settings()
    assert (settings.dashboard, settings.read_only) == (False, True)
    beside_workers = serve.UpServerFlags(dashboard=False, read_only=True).settings()
    assert beside_workers == {"dashboard": False, "read_only": True}
    for flag in ("--no-dashboard", "--read-only"):
        ran = cli("up", "--no-serve", flag)
        assert (ran.code, "leave out --no-serve" in ran.err) == (2, True)
