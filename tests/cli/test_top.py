"""`holdfast top` and `status`: what a person sees, and what a script reads."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli import making
from tests.cli.program import Cli, command, environment, run_program

EVIL = "\x1b]0;owned\x07\x9b31m"


def test_top_once_shows_queues_workers_and_what_runs(cli: Cli) -> None:
    making.worker("w")
    making.enqueue("j", "command", {"command": ["echo", EVIL]})
    making.lease()
    ran = cli("top", "--once")
    assert (ran.code, ran.err) == (0, "")
    for part in ("holdfast on sqlite:///holdfast.db", "default", "w  ", "echo '\\x1b]0;owned"):
        assert part in ran.out
    assert not set(ran.out) & {"\x1b", "\x07", "\x9b"}


def test_top_once_for_scripts(cli: Cli) -> None:
    making.enqueue("j", "t")
    making.lease()
    told = cli("top", "--once", "--json").json
    assert [queue["leased"] for queue in told["queues"]] == [1]
    assert [(job["id"], job["worker"], job["attempt"]) for job in told["jobs"]] == [("j", "w", 1)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_top_for_scripts_is_a_line_each_time_until_a_signal(tmp_path: Path, number: int) -> None:
    assert run_program(tmp_path, "queue", "create", "q").code == 0
    line = command("top", "--json", "--interval", "100ms")
    with subprocess.Popen(
        line, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as top:
        assert top.stdout is not None
        looks = [json.loads(top.stdout.readline()) for _ in range(2)]
        top.send_signal(number)
        _, err = top.communicate(timeout=30)
    assert [sorted(look) for look in looks] == [["jobs", "queues", "workers"]] * 2
    assert (top.returncode, err) == (0, b"")


@pytest.mark.parametrize("words", [["status"], ["queue", "list"], ["top", "--once"]])
def test_an_empty_queue_of_a_worker_is_for_scripts_alone(cli: Cli, words: list[str]) -> None:
    for name in ("worker.idle", "worker.busy", "worker.paused", "mine"):
        assert cli("queue", "create", name).code == 0
    assert cli("queue", "pause", "worker.paused").code == 0
    making.enqueue("j", queue="worker.busy")
    shown = cli(*words).out
    assert "worker.idle" not in shown
    for name in ("worker.busy", "worker.paused", "mine", "default"):
        assert name in shown
    told = cli(*words, "--json").json
    names = {queue["name"] for queue in (told if isinstance(told, list) else told["queues"])}
    assert names >= {"worker.idle", "worker.busy", "worker.paused", "mine", "default"}


def test_a_table_has_no_blanks_at_its_ends(cli: Cli) -> None:
    making.worker("w")
    assert all(line == line.rstrip() for line in cli("status").out.splitlines())
