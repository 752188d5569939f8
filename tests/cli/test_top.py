"""`holdfast top` and `status` as tables and as JSON."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from holdfast.core.model import Note, Renewal
from tests.cli import seed
from tests.cli.program import Cli, command, environment, run_program

EVIL = "\x1b]0;owned\x07\x9b31m"


def test_top_once_shows_queues_workers_and_running_jobs(cli: Cli) -> None:
    seed.worker("w")
    seed.enqueue("j", "command", {"command": ["echo", EVIL]})
    seed.lease()
    ran = cli("top", "--once")
    assert (ran.code, ran.err) == (0, "")
    for part in ("holdfast on sqlite:///holdfast.db", "default", "w  ", "echo '\\x1b]0;owned"):
        assert part in ran.out
    assert not set(ran.out) & {"\x1b", "\x07", "\x9b"}


def test_top_once_as_json(cli: Cli) -> None:
    seed.enqueue("j", "t")
    seed.lease()
    answer = cli("top", "--once", "--json").json
    assert [queue["leased"] for queue in answer["queues"]] == [1]
    assert [(job["id"], job["worker"], job["attempt"]) for job in answer["jobs"]] == [("j", "w", 1)]


@pytest.mark.parametrize(("progress", "shown"), [(None, ""), (0.25, " 25 %")])
def test_top_shows_the_progress_of_a_running_job(
    cli: Cli, progress: float | None, shown: str
) -> None:
    seed.enqueue("j", "t")
    note = Renewal(lease=seed.lease(), note=Note(progress=progress))
    seed.with_app(lambda app: app.renew_many([note]))
    assert shown in cli("top", "--once").out
    assert [job["progress"] for job in cli("top", "--once", "--json").json["jobs"]] == [progress]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_top_as_json_prints_a_line_per_refresh_until_a_signal(tmp_path: Path, number: int) -> None:
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
def test_an_empty_worker_queue_is_only_in_json(cli: Cli, words: list[str]) -> None:
    for name in ("worker.idle", "worker.busy", "worker.paused", "mine"):
        assert cli("queue", "create", name).code == 0
    assert cli("queue", "pause", "worker.paused").code == 0
    seed.enqueue("j", queue="worker.busy")
    shown = cli(*words).out
    assert "worker.idle" not in shown
    for name in ("worker.busy", "worker.paused", "mine", "default"):
        assert name in shown
    answer = cli(*words, "--json").json
    names = {queue["name"] for queue in (answer if isinstance(answer, list) else answer["queues"])}
    assert names >= {"worker.idle", "worker.busy", "worker.paused", "mine", "default"}


def test_a_table_has_no_trailing_blanks(cli: Cli) -> None:
    seed.worker("w")
    assert all(line == line.rstrip() for line in cli("status").out.splitlines())
