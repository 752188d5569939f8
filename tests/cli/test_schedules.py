"""`schedule …`: rules, and the jobs of their ticks."""

import json
import re

import pytest

from holdfast import Holdfast
from holdfast.core.model import NewJob
from holdfast.ops.schedules.declared import DeclaredSchedules, save_schedules
from holdfast.ops.ticks import Schedule
from holdfast.process import wall_ms
from tests.cli import seed
from tests.cli.program import Cli

DAILY = ["--cron", "0 3 * * *", "--zone", "Europe/Berlin"]


def schedule(name: str = "s") -> Schedule:
    found = seed.with_app(lambda app: app.schedules.get(name))
    assert found is not None
    return found


def test_an_empty_list_says_how_to_add_a_schedule(cli: Cli) -> None:
    seed.begin()
    ran = cli("schedule", "list")
    assert (ran.out, ran.err) == (
        "",
        'there are no schedules: add one with "holdfast schedule add"\n',
    )


def test_a_command_keeps_its_arguments(cli: Cli) -> None:
    ran = cli("schedule", "add", "s", *DAILY, "--", "ls", "-l", "--json", "a b; rm")
    assert ran.out.startswith("added schedule s; next run ")
    assert schedule().job.task == "command"
    assert json.loads(schedule().job.payload) == {"command": ["ls", "-l", "--json", "a b; rm"]}
    assert (schedule().cron, schedule().zone) == ("0 3 * * *", "Europe/Berlin")


def test_a_task_with_every_field(cli: Cli) -> None:
    cli("queue", "create", "mail")
    line = ["--every", "10m", "--missed", "all", "--missed-max", "3", "--grace", "5s"]
    line += ["--task", "send", "--payload", '{"to": "ä"}', "--queue", "mail", "--priority", "4"]
    line += ["--max-attempts", "2", "--tenant", "acme", "--expires", "1h", "--label", "a=1"]
    view = cli("schedule", "add", "s", *line, "--json").json
    assert (view["name"], view["every_ms"], view["payload"]) == ("s", 600_000, {"to": "ä"})
    kept = schedule()
    assert (kept.missed, kept.missed_max, kept.grace_ms) == ("all", 3, 5_000)
    assert (kept.job.queue, kept.job.priority, kept.job.tenant) == ("mail", 4, "acme")
    assert (kept.job.expires_ms, kept.job.labels) == (3_600_000, {"a": "1"})
    assert kept.job.overrides.max_attempts == 2
    listed = cli("schedule", "list", "--json").json
    assert listed == [view]
    assert "Every 10m" in cli("schedule", "list").out


def test_edit_changes_only_the_given_fields(cli: Cli) -> None:
    cli("schedule", "add", "s", *DAILY, "--task", "t", "--payload", "[1]", "--timeout", "5s")
    before = schedule()
    assert cli("schedule", "edit", "s", "--priority", "7", "--max-attempts", "1").code == 0
    after = schedule()
    assert (after.cron, after.passed_at) == (before.cron, before.passed_at)
    assert (after.job.task, after.job.payload, after.job.priority) == ("t", b"[1]", 7)
    assert (after.job.overrides.timeout_ms, after.job.overrides.max_attempts) == (5_000, 1)
    cli("schedule", "edit", "s", "--every", "1h", "--missed", "skip")
    assert (schedule().cron, schedule().every_ms, schedule().missed) == (None, 3_600_000, "skip")
    cli("schedule", "edit", "s", "--payload", "[2]", "--delay", "1m", "--expires", "2m")
    assert (schedule().job.task, schedule().job.payload) == ("t", b"[2]")
    assert (schedule().job.delay_ms, schedule().job.expires_ms) == (60_000, 120_000)
    cli("schedule", "edit", "s", "--", "true")
    assert (schedule().job.task, schedule().job.payload) == ("command", b'{"command":["true"]}')
    assert schedule().job.priority == 7


def test_pause_resume_run_and_remove(cli: Cli) -> None:
    cli("schedule", "add", "s", "--every", "1d", "--task", "t")
    assert cli("schedule", "pause", "s").out == "paused schedule s\n"
    assert schedule().paused
    assert "paused" in cli("schedule", "list").out
    assert cli("schedule", "list", "--json").json[0]["next_tick"] is None
    assert cli("schedule", "resume", "s").code == 0
    assert not schedule().paused
    ran = cli("schedule", "run", "s", "--json").json
    assert ran["status"] == "new"
    job = cli("job", "show", ran["id"], "--json").json
    assert (job["task"], job["headers"]) == ("t", {"schedule": "s"})
    assert cli("schedule", "remove", "s").out == "removed schedule s\n"
    assert cli("schedule", "list", "--json").json == []
    assert len(cli("list", "--json").json) == 1, "jobs that it enqueued stay"


def test_the_list_has_words_local_time_and_utc(cli: Cli) -> None:
    cli("schedule", "add", "s", "--cron", "30 4 1 7 *", "--zone", "Europe/Berlin", "--task", "t")
    title, row = cli("schedule", "list").out.splitlines()
    assert title.split() == "schedule rule next UTC queue job last made by".split()
    assert "(Europe/Berlin)  " in row
    assert re.search(r"[A-Z][a-z]{2} \d{4}-07-01 04:30 CEST  \d{4}-07-01T02:30:00Z", row)
    assert row.endswith("a person")


def test_a_schedule_of_code_says_that_its_workers_restore_it(cli: Cli) -> None:
    seed.begin()

    async def declare(app: Holdfast) -> None:
        job = NewJob(id="schedule:s", task="t")
        declared = Schedule(name="s", cron="@daily", job=job)
        given = DeclaredSchedules(program="shop", schedules=(declared,))
        await save_schedules(app.engine, given, 1, wall_ms)

    seed.with_app(declare)
    assert cli("schedule", "list").out.rstrip().endswith("code of shop")
    assert cli("schedule", "list", "--json").json[0]["program"] == "shop"
    said = "the code of shop declares schedule s: its workers restore it when they start"
    assert said in cli("schedule", "edit", "s", "--cron", "@weekly").err
    assert cli("schedule", "pause", "s").err == "", "a pause stays"
    assert cli("schedule", "remove", "s").err.endswith("or pause it instead\n")


def test_preview(cli: Cli) -> None:
    cli("schedule", "add", "s", *DAILY, "--task", "t")
    ticks = cli("schedule", "preview", "s", "--count", "3", "--json").json
    assert len(ticks) == 3
    assert all(tick[11:] in ("01:00:00Z", "02:00:00Z") for tick in ticks)
    rule = ["--cron", "*/5 * * * *", "--count", "2"]
    lines = cli("schedule", "preview", *rule).out.splitlines()
    assert len(lines) == 2
    assert all(re.fullmatch(r"\S+Z  \S{3} \S+ \d\d:\d[05] UTC", line) for line in lines)
    assert len(cli("schedule", "preview", "s", *rule).out.splitlines()) == 2
    assert schedule().cron == "0 3 * * *", "a preview stores nothing"


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (["add", "s", "--every", "1h", "--task", "t"], 2, "exists already"),
        (["add", "x", "--task", "t"], 2, "--cron or --every"),
        (["add", "x", *DAILY], 2, "command"),
        (["add", "x", *DAILY, "--every", "1h", "--task", "t"], 2, "not both"),
        (["add", "x", "--cron", "61 * * * *", "--task", "t"], 2, "61 * * * *"),
        (["add", "x", *DAILY[:3], "Mars/Base", "--task", "t"], 2, "Mars/Base"),
        (["add", "x", *DAILY, "--task", "t", "--id", "a"], 2, "--id"),
        (["add", "x", *DAILY, "--task", "t", "--queue", "no"], 3, "queue no does not exist"),
        (["add", "x", *DAILY, "--command", "ls", "--", "ls"], 2, "not both"),
        (["add", "a/b", *DAILY, "--task", "t"], 2, "a/b"),
        (["edit", "s"], 2, "nothing to change"),
        (["edit", "no", "--every", "1h"], 3, '"no"'),
        (["edit", "s", "--every", "1ms"], 2, "every_ms 1"),
        (["remove", "no"], 3, '"no"'),
        (["pause", "no"], 3, '"no"'),
        (["resume", "no"], 3, '"no"'),
        (["run", "no"], 3, '"no"'),
        (["preview", "no"], 3, '"no"'),
        (["preview"], 2, "name a schedule"),
    ],
)
def test_an_error_changes_nothing(cli: Cli, line: list[str], code: int, says: str) -> None:
    cli("schedule", "add", "s", "--every", "1d", "--task", "t")
    before = schedule()
    ran = cli("schedule", *line)
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
    assert says in ran.err
    assert schedule() == before
    assert len(cli("schedule", "list", "--json").json) == 1
