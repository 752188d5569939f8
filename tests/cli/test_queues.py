"""`status` and `queue …`."""

import subprocess
from pathlib import Path

import pytest

from holdfast.core.model import Queue
from holdfast.core.verdict import Complete
from tests.cli import seed
from tests.cli.program import Cli, command, environment

COUNTS = "name ready delayed blocked leased overdue done dead oldest_age_ms".split()


def queue(name: str = "mail") -> Queue:
    views = seed.with_app(lambda app: app.queues(counts=False))
    return next(view.queue for view in views if view.queue.name == name)


def test_status_shows_queues_and_workers(cli: Cli) -> None:
    seed.dead("c")
    seed.enqueue("l")
    seed.lease()
    seed.enqueue("a")
    seed.enqueue("b", delay="1h")
    seed.worker("w", running=1, capacity=4, consecutive_failures=3)
    status = cli("--json", "status").json
    [queue] = status["queues"]
    assert set(COUNTS) <= set(queue)
    assert {name: queue[name] for name in ("name", "ready", "delayed", "leased", "dead")} == {
        "name": "default",
        "ready": 1,
        "delayed": 1,
        "leased": 1,
        "dead": 1,
    }
    [worker] = status["workers"]
    for name, value in {
        "name": "w",
        "id": "1",
        "host": "h",
        "pid": 7,
        "health": "degraded",
        "running": 1,
        "capacity": 4,
        "cordoned": False,
        "queues": {"default": 1},
    }.items():
        assert worker[name] == value
    assert 0 <= worker["heartbeat_age_ms"] < 60_000
    text = cli("status").out
    assert "default" in text
    assert "degraded" in text
    assert "1/4" in text


def test_status_names_queues_that_no_worker_serves(cli: Cli) -> None:
    seed.worker("w")
    assert cli("queue", "create", "mail").code == 0
    seed.enqueue("a")
    assert cli("status").err == ""
    seed.enqueue("b", queue="mail")
    answer = cli("status").err
    assert answer == (
        "queue mail has ready jobs and no worker: start one with"
        ' "holdfast worker start --queues mail"\n'
    )
    assert cli("queue", "pause", "mail").code == 0
    assert cli("status").err == ""


def test_status_without_workers_says_how_to_start_one(cli: Cli) -> None:
    seed.begin()
    assert "worker start" in cli("status").err
    assert cli("status", "--json").json["workers"] == []


SETTINGS = {
    "--lease": ("1m", "lease_ms", 60_000),
    "--timeout": ("5s", "timeout_ms", 5_000),
    "--max-attempts": ("7", "max_attempts", 7),
    "--max-crashes": ("9", "max_crashes", 9),
    "--order": ("keep", "order", "keep"),
    "--retention": ("2d", "retention_ms", 172_800_000),
    "--dead-retention": ("4w", "dead_retention_ms", 2_419_200_000),
    "--dead-queue": ("default", "dead_queue", "default"),
    "--max-depth": ("50", "max_depth", 50),
    "--payload-max": ("100", "payload_max", 100),
}


@pytest.mark.parametrize("verb", ["create", "update"])
def test_every_setting_has_a_flag(cli: Cli, verb: str) -> None:
    if verb == "update":
        cli("queue", "create", "mail")
    flags = [word for flag, (text, *_) in SETTINGS.items() for word in (flag, text)]
    flags += ["--backoff", "linear(5s, max=1m)", "--no-accepting"]
    made = cli("queue", verb, "mail", *flags, "--json").json
    for _, name, value in SETTINGS.values():
        assert made[name] == value
    assert (made["backoff"]["kind"], made["backoff"]["cap_ms"]) == ("linear", 60_000)
    assert made["accepting"] is False
    assert (queue().lease_ms, queue().max_depth) == (60_000, 50)
    text = cli("queue", "show", "mail").out
    assert "linear(5s, max=1m)" in text
    assert "lease           1m" in text


@pytest.mark.parametrize("flag", SETTINGS)
def test_update_changes_only_the_given_settings(cli: Cli, flag: str) -> None:
    cli("queue", "create", "mail", "--max-attempts", "2", "--lease", "9s", "--timeout", "1h")
    before = cli("queue", "show", "mail", "--json").json
    text, name, value = SETTINGS[flag]
    assert cli("queue", "update", "mail", flag, text).out == "changed queue mail\n"
    assert cli("queue", "show", "mail", "--json").json == {**before, name: value}


def test_none_removes_an_optional_setting(cli: Cli) -> None:
    cli("queue", "create", "mail", "--timeout", "1s", "--dead-queue", "default", "--max-depth", "1")
    for flag in ("--timeout", "--dead-queue", "--max-depth"):
        assert cli("queue", "update", "mail", flag, "none").code == 0
    assert (queue().timeout_ms, queue().dead_queue, queue().max_depth) == (None, None, None)


def test_pause_and_resume(cli: Cli) -> None:
    seed.begin()
    assert cli("queue", "pause", "default").out == "paused queue default\n"
    assert queue("default").paused
    assert "(paused)" in cli("status").out
    assert cli("queue", "list").out.split()[-1] == "paused"
    assert cli("queue", "resume", "default").out == "resumed queue default\n"
    assert not queue("default").paused
    assert cli("queue", "list", "--json").json[0]["paused"] is False


def test_drain_waits_until_the_queue_is_empty(cli: Cli, tmp_path: Path) -> None:
    seed.enqueue("j")
    taken = seed.lease()
    with subprocess.Popen(
        command("queue", "drain", "default", "--json"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        while queue("default").accepting:
            assert process.poll() is None
        refused = cli("enqueue", "--task", "t")
        assert (refused.code, "not_accepting" in refused.err) == (2, True)
        assert process.poll() is None
        seed.settle(taken, Complete())
        assert process.wait() == 0
    assert not queue("default").accepting
    assert cli("queue", "update", "default", "--accepting").code == 0
    assert cli("enqueue", "--task", "t").code == 0


def test_drain_can_time_out_or_not_wait(cli: Cli) -> None:
    seed.enqueue("j")
    ran = cli("queue", "drain", "default", "--timeout", "0s")
    assert ran.code == 5
    assert "1 job left" in ran.out
    ran = cli("queue", "drain", "default", "--no-wait", "--json")
    assert ran.json == {"queue": "default", "accepting": False, "left": 1}
    cli("queue", "pause", "default")
    assert "is paused" in cli("queue", "drain", "default", "--no-wait").err


def test_clear_deletes_waiting_jobs_after_confirmation(cli: Cli) -> None:
    seed.done("done")
    seed.dead("dead")
    seed.enqueue("run")
    seed.lease()
    for number in range(3):
        seed.enqueue(f"w{number}")
    assert (
        cli("queue", "clear", "default", "--dry-run").out
        == "would delete 3 jobs of queue default\n"
    )
    ran = cli("queue", "clear", "default")
    assert (ran.code, ran.out) == (2, "")
    assert "--yes" in ran.err
    assert len(cli("list", "--json").json) == 6
    assert cli("queue", "clear", "default", "--yes").out == "deleted 3 jobs of queue default\n"
    left = [job["id"] for job in cli("list", "--json").json]
    assert left == ["run", "dead", "done"]
    assert cli("queue", "clear", "default", "--state", "leased", "--yes").code == 2
    flags = ["--state", "dead", "--state", "done", "--force", "--yes", "--json"]
    assert cli("queue", "clear", "default", *flags).json["deleted"] == 3
    assert cli("list", "--json").json == []


def test_clear_deletes_more_than_one_batch(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.ops.jobs.bulk.job_batches.__defaults__", (2,))
    for number in range(5):
        seed.enqueue(f"w{number}")
    assert cli("queue", "clear", "default", "--yes", "--json").json["deleted"] == 5


def test_delete_asks_only_when_there_are_jobs(cli: Cli) -> None:
    cli("queue", "create", "mail")
    assert cli("queue", "delete", "mail").code == 0
    cli("queue", "create", "mail")
    seed.enqueue(queue="mail")
    assert cli("queue", "delete", "mail", "--dry-run", "--json").json == {
        "queue": "mail",
        "jobs": 1,
        "deleted": False,
    }
    assert cli("queue", "delete", "mail").code == 2
    assert queue().name == "mail"
    assert cli("queue", "delete", "mail", "--yes").out == "deleted queue mail and its 1 job\n"
    assert cli("queue", "show", "mail").code == 3


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (["create", "a/b"], 2, "queue name 'a/b'"),
        (["create", "default"], 2, "exists already"),
        (["create", "x", "--lease", "soon"], 2, 'lease "soon"'),
        (["create", "x", "--backoff", "slow"], 2, 'backoff "slow"'),
        (["create", "x", "--order", "heap"], 2, "order"),
        (["create", "x", "--max-depth", "many"], 2, 'max-depth "many"'),
        (["update", "default"], 2, "nothing to change"),
        (["update", "nowhere", "--lease", "1s"], 3, 'queue "nowhere" does not exist'),
        (["show", "nowhere"], 3, '"nowhere"'),
        (["pause", "nowhere"], 3, '"nowhere"'),
        (["resume", "nowhere"], 3, '"nowhere"'),
        (["drain", "nowhere"], 3, '"nowhere"'),
        (["drain", "default", "--timeout", "x"], 2, 'timeout "x"'),
        (["clear", "nowhere", "--yes"], 3, '"nowhere"'),
        (["delete", "nowhere", "--yes"], 3, '"nowhere"'),
    ],
)
def test_an_error_names_the_value(cli: Cli, line: list[str], code: int, says: str) -> None:
    seed.begin()
    ran = cli("queue", *line)
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
    assert says in ran.err


def test_the_error_for_a_missing_queue_says_how_to_create_it(cli: Cli) -> None:
    ran = cli("enqueue", "--queue", "mail", "--task", "t")
    assert ran.err == (
        'holdfast: queue mail does not exist: create it with "holdfast queue create mail", or every'
        ' queue on first use with "holdfast queue create --auto"'
        " (unknown_queue)\n"
    )


def test_the_error_for_a_closed_queue_says_how_to_open_it(cli: Cli) -> None:
    assert cli("queue", "create", "q", "--no-accepting").code == 0
    ran = cli("enqueue", "--queue", "q", "--task", "t")
    assert "queue update q --accepting" in ran.err
    assert "still refuses new jobs" in cli("queue", "resume", "q").err


def test_queues_are_created_on_first_use(cli: Cli) -> None:
    assert cli("enqueue", "--queue", "mail", "--task", "t").code == 3
    assert cli("queue", "create", "--auto").out.startswith("queues are created on first use;")
    assert cli("enqueue", "--queue", "mail", "--task", "t", "--id", "j").out == "j\n"
    assert [job["queue"] for job in cli("list", "--json").json] == ["mail"]
    assert cli("enqueue", "--to", "nobody", "--task", "t").code == 3, "a worker's own queue"
    assert cli("config", "unset", "create-queues").code == 0
    assert cli("enqueue", "--queue", "other", "--task", "t").code == 3


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["mail", "--auto"], "--auto is for all queues"),
        (["--auto", "--lease", "9s"], "--auto is for all queues"),
        ([], "the name of the queue is missing"),
    ],
)
def test_auto_takes_neither_name_nor_settings(cli: Cli, line: list[str], says: str) -> None:
    ran = cli("queue", "create", *line)
    assert ran.code == 2
    assert says in ran.err
