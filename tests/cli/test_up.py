"""`holdfast up` as people use it: start it, run a job, stop it."""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from tests.cli.program import Cli, command, environment, run_program
from tests.wait import wait_until

_TIMEOUT_S = 60


@contextmanager
def program(folder: Path, *line: str) -> Iterator["subprocess.Popen[str]"]:
    """A command that runs until it is stopped."""
    started = subprocess.Popen(
        command(*line),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with started:
            try:
                yield started
            finally:
                # Its workers end with it.
                started.kill()
    finally:
        started.wait()


def last_line(process: "subprocess.Popen[str]", start: str) -> str:
    """Read up to the line with this beginning."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip().startswith(start):
            return line
    raise AssertionError(process.communicate())


def users_of(folder: Path) -> list[int]:
    """Processes that have a file of the folder open, or work in it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            places = [entry / "cwd", *(entry / "fd").iterdir()]
            if any(str(place.readlink()).startswith(str(folder)) for place in places):
                found.append(int(entry.name))
        except OSError:
            # It ended while it was looked at, or is somebody else's.
            continue
    return found


def test_up_runs_a_job_and_leaves_no_process(tmp_path: Path) -> None:
    with program(tmp_path, "up") as up:
        link = last_line(up, "dashboard: ").split()[-1]
        assert page_at(link).startswith("<!doctype html>")
        last_line(up, "holdfast top")
        assert users_of(tmp_path), "or this test would see nothing of what is left"
        hello = run_program(tmp_path, "enqueue", "--wait", "--", "echo", "hello")
        assert hello == (0, "hello\n", "")
        status = run_program(tmp_path, "status", "--json").json
        assert len(status["workers"]) == 2
        assert [queue["done"] for queue in status["queues"] if queue["name"] == "default"] == [1]
        up.send_signal(signal.SIGTERM)
        out, err = up.communicate(timeout=_TIMEOUT_S)
    assert (up.returncode, out) == (0, "stopped\n")
    assert "\nstopping: " in err
    assert re.search(
        r"^holdfast: worker \S+ runs command from queue default, up to 1 job at a time", err
    )
    assert re.search(r"(?m)^holdfast: \S+ echo hello done after \d+ ms$", err)
    assert users_of(tmp_path) == []


def test_wait_prints_output_and_the_outcome(tmp_path: Path) -> None:
    script = r"printf '\033[31mred'; printf '\007' >&2; exit 7"
    with program(tmp_path, "up", "--count", "1", "--json") as up:
        assert json.loads(last_line(up, "{"))["event"] == "started"
        ran = run_program(
            tmp_path, "enqueue", "--wait", "--max-attempts", "1", "--", "sh", "-c", script
        )
        assert ran.code == 4
        assert "is dead (attempts): exit code 7" in ran.err
        for text in (ran.out, ran.err):
            assert "\\x1b[31mred" in text
            assert "\x1b" not in text
            assert "\x07" not in text
        up.send_signal(signal.SIGINT)
        assert up.wait(_TIMEOUT_S) == 0


def test_a_second_up_on_the_same_file_adds_workers(tmp_path: Path) -> None:
    with program(tmp_path, "up", "--count", "1") as first:
        last_line(first, "holdfast top")
        with program(tmp_path, "up", "--count", "1") as second:
            last_line(second, "holdfast top")
            workers = run_program(tmp_path, "worker", "list", "--json").json
            assert len({worker["name"] for worker in workers}) == 2
            ran = run_program(tmp_path, "worker", "stop")
            assert ran.code == 0
            for process in (first, second):
                process.communicate(timeout=_TIMEOUT_S)
                assert process.returncode == 0


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (["--queues", "nowhere"], 3, "queue nowhere does not exist"),
        (["--count", "0"], 2, "--count 0 is out of range: expected 1 to 256"),
        (["--name", "a b"], 2, "is not a valid worker name"),
        (["--app", "nothing.py:app"], 2, "no file 'nothing.py'"),
        (["--url", "memory:"], 2, "use a file"),
        (["--cwd", "nowhere"], 2, "--cwd nowhere is not a folder: create it, or give"),
    ],
)
def test_up_with_invalid_flags_says_why(cli: Cli, line: list[str], code: int, says: str) -> None:
    ran = cli("up", *line)
    assert ran.code == code
    assert says in ran.err
    assert re.search(r" \([a-z_]+\)\n$", ran.err), ran.err
    assert "draining" not in ran.err


def test_wait_for_a_job_without_a_worker_says_why(tmp_path: Path) -> None:
    ran = run_program(tmp_path, "enqueue", "--wait", "--wait-timeout", "6s", "--", "true")
    assert (ran.code, ran.out) == (5, "")
    first, last = ran.err.splitlines()
    assert first.startswith("still waiting: no worker serves queue default")
    assert "job explain" in first
    assert last.endswith("has not ended yet; it continues")


def test_a_short_demo_prints_its_results(tmp_path: Path) -> None:
    answer: dict[str, Any] = run_program(
        tmp_path, "demo", "--for", "4s", "--workers", "1", "--no-serve", "--json"
    ).json
    assert sum(queue["done"] for queue in answer["queues"]) > 0
    assert users_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == [], "without --url it works on a file of its own"


def test_a_demo_prints_the_link_first_and_ends_at_ctrl_c(tmp_path: Path) -> None:
    with program(tmp_path, "demo", "--port", "0", "--workers", "1") as demo:
        assert demo.stdout is not None
        name, link = demo.stdout.readline().split()
        assert name == "dashboard:"
        assert page_at(link).startswith("<!doctype html>")
        wait_until(lambda: jobs_done(link))
        assert any(queue["paused"] for queue in queues_at(link))
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=_TIMEOUT_S)
    assert demo.returncode == 0
    assert link in out, "the table names it too"
    assert re.search(r"the demo is over; jobs done: [1-9]\d*, dead letters: \d+\n$", err)
    assert users_of(tmp_path) == []
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", urlsplit(link).port or 0))


def test_a_demo_on_a_taken_port_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = run_program(tmp_path, "demo", "--port", str(taken.getsockname()[1]))
    assert ran.code == 2
    assert "in use" in ran.err


def page_at(link: str) -> str:
    """The page that a browser is shown there."""
    with urlopen(link) as answer:
        return str(answer.read().decode())


def queues_at(link: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(page_at(f"{link}v1/queues"))["queues"]
    return found


def jobs_done(link: str) -> int:
    return sum(queue["done"] for queue in queues_at(link))
