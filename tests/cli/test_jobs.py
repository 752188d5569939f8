"""`list`, `job list`, `job show`, `job explain`, `job timeline` and `job logs`."""

import json
import subprocess
from pathlib import Path

import pytest

from holdfast.cli.jobs import new_output
from holdfast.core.model import Failure, JobFilter, Reason
from holdfast.core.verdict import Bury, Complete, Expedite, Retry
from tests.cli import seed
from tests.cli.program import Cli, command, environment, run_program

FIELDS = """id queue task state attempts max_attempts priority created_at due_at finished_at
    worker result error reason exit_code output duration_ms failures""".split()
HOSTILE = "\x1b[31m\x07\r\x9b2J\u202e\u2028[bold]red[/bold]"


def test_every_state_has_the_fields_that_scripts_rely_on(cli: Cli) -> None:
    seed.done("done", {"exit_code": 0, "duration_ms": 5}, b"hello\n", task="command")
    seed.dead("dead")
    seed.enqueue("gone")
    assert cli("job", "cancel", "gone").code == 0
    seed.enqueue("run")
    seed.lease()
    seed.enqueue("wait", priority=3)
    shown = {each: cli("--json", "job", "show", each).json for each in STATES}
    for id_, state in STATES.items():
        assert set(FIELDS) <= set(shown[id_])
        assert (shown[id_]["id"], shown[id_]["state"]) == (id_, state)
    done = shown["done"]
    assert (done["exit_code"], done["output"], done["attempts"]) == (0, "hello\n", 1)
    assert done["result"] == {"exit_code": 0, "duration_ms": 5}
    assert done["duration_ms"] >= 0
    dead = shown["dead"]
    assert (dead["exit_code"], dead["error"], dead["reason"]) == (3, "boom", "attempts")
    [failure] = dead["failures"]
    assert (failure["type"], failure["worker"], failure["attempt"]) == ("ValueError", "w", 1)
    assert (shown["wait"]["finished_at"], shown["wait"]["priority"]) == (None, 3)
    assert shown["run"]["worker"] == "w"
    listed = cli("--json", "list").json
    for job in [*listed, *shown.values()]:
        # The deadline is kept by another clock, and shown in present wall time.
        del job["deadline_at"]
    assert {job["id"]: job for job in listed} == shown
    assert [job["id"] for job in listed] == ["wait", "run", "gone", "dead", "done"]


def test_show_names_the_jobs_that_a_job_waits_for(cli: Cli) -> None:
    assert cli("queue", "create", "mail").code == 0
    assert cli("queue", "limit", "mail", "few", "--concurrency", "1", "--key", "{tenant}").code == 0
    for id_, *flags in (
        ["parent"],
        ["child", "--after", "parent"],
        ["head", "--group", "g"],
        ["next", "--group", "g"],
        ["taken", "--queue", "mail", "--tenant", "acme"],
        ["full", "--queue", "mail", "--tenant", "acme"],
    ):
        assert cli("enqueue", "--id", id_, "--task", "t", *flags).code == 0
    seed.lease("mail")
    waits = {
        each: cli("--json", "job", "show", each).json["waits_for"]
        for each in ("parent", "child", "head", "next", "taken", "full")
    }
    assert [waits[each] for each in ("parent", "head", "taken")] == [None] * 3
    nothing = {"parents": [], "parent_count": 0, "group_head": None, "limits": []}
    assert waits["child"] == {**nothing, "parents": ["parent"], "parent_count": 1}
    assert waits["next"] == {**nothing, "group_head": "head"}
    [limit] = waits["full"]["limits"]
    assert (limit["limit"], limit["key"], limit["holders"]) == ("few", "acme", ["taken"])
    child = cli("job", "show", "child").out
    assert "after             parent\n" in child
    assert "waits_for         1 job: parent (waiting)\n" in child
    assert (
        "waits_for         job head is ahead of it in group g\n" in cli("job", "show", "next").out
    )
    full = "waits_for         limit few for acme is full: 1 of 1 slots are held, by taken\n"
    assert full in cli("job", "show", "full").out
    assert "waits_for" not in cli("job", "show", "parent").out


def test_show_names_only_a_few_of_many_parents(cli: Cli) -> None:
    parents = [f"p{number}" for number in range(9)]
    for each in parents:
        assert cli("enqueue", "--id", each, "--task", "t").code == 0
    after = [word for each in parents for word in ("--after", each)]
    assert cli("enqueue", "--id", "c", "--task", "t", *after).code == 0
    text = cli("job", "show", "c").out
    assert "after             p0, p1, p2, p3, p4 and 4 more\n" in text
    assert "9 jobs: p0 (waiting), p1 (waiting), p2 (waiting) and 6 more\n" in text
    assert cli("--json", "job", "show", "c").json["after"] == parents


STATES = {"done": "done", "dead": "dead", "gone": "cancelled", "run": "leased", "wait": "waiting"}


def test_the_error_of_a_job_is_that_of_its_last_attempt(cli: Cli) -> None:
    seed.retried("j", delay_ms=0, text="no route")
    assert cli("job", "show", "j", "--json").json["error"] == "no route"
    seed.settle(seed.lease(), Complete())
    shown = cli("job", "show", "j", "--json").json
    assert (shown["state"], shown["error"], shown["exit_code"]) == ("done", None, None)
    assert [failure["error"] for failure in shown["failures"]] == ["no route"]


TRACE = (
    "Traceback (most recent call last):\n"
    '  File "/home/ada/shop.py", line 7, in bill\n'
    '    return order["customer"]\x1b[31m\n'
    '  File "/usr/lib/python3.12/json/decoder.py", line 1, in decode\n'
    "KeyError: 'customer'\n"
)
MISSING = Failure(type="KeyError", message="'customer'", trace=TRACE)


def test_a_failure_is_shown_with_its_type_and_the_frames_of_the_users_code(cli: Cli) -> None:
    seed.ended("j", Retry(0, MISSING))
    for line in (["job", "explain", "j"], ["job", "show", "j"]):
        assert "KeyError: 'customer'" in cli(*line).out
    seed.settle(seed.lease(), Bury(Reason.ATTEMPTS, MISSING))
    shown = cli("job", "show", "j").out
    assert "error             KeyError: 'customer'\n" in shown
    assert "retried (attempt 1) by w: KeyError: 'customer' at shop.py:7 in bill\n" in shown
    explained = cli("job", "explain", "j").out
    assert "its last attempt failed (KeyError: 'customer' at shop.py:7 in bill)" in explained
    waited = cli("enqueue", "--id", "j", "--task", "t", "--wait")
    assert waited.code == 4
    assert waited.err.splitlines()[:2] == [
        "attempt 1 failed: KeyError: 'customer' at shop.py:7 in bill; the next one starts now",
        "j is dead (attempts): KeyError: 'customer'",
    ]
    for text in (shown, explained, waited.err, cli("dlq", "show", "j").out):
        assert '    File "/home/ada/shop.py", line 7, in bill\n' in text
        assert 'return order["customer"]\\x1b[31m\n' in text
        assert "decoder.py" not in text
    assert "KeyError: 'customer' at shop.py:7 in bill" in cli("dlq", "list").out


def test_an_error_without_a_text_is_shown_by_its_type(cli: Cli) -> None:
    seed.ended("j", Bury(Reason.ATTEMPTS, Failure(type="AssertionError")))
    assert "error             AssertionError\n" in cli("job", "show", "j").out
    assert "AssertionError" in cli("dlq", "list").out
    assert "its last attempt failed (AssertionError)" in cli("job", "explain", "j").out
    waited = cli("enqueue", "--id", "j", "--task", "t", "--wait")
    assert waited.err == "j is dead (attempts): AssertionError\n"


@pytest.mark.parametrize(
    ("result", "shown"),
    [(None, ""), (3, "3\n"), ("a\nb", "a\\nb\n"), ({"total": 4}, '{"total": 4}\n')],
)
def test_wait_prints_the_result(cli: Cli, result: object, shown: str) -> None:
    seed.done("j", result)
    assert cli("enqueue", "--id", "j", "--task", "t", "--wait") == (0, shown, "")


@pytest.mark.parametrize(
    ("flags", "ids"),
    [
        ([], "edcba"),
        (["--state", "dead"], "b"),
        (["--state", "dead", "--state", "waiting"], "edcb"),
        (["--queue", "mail"], "c"),
        (["--task", "send"], "d"),
        (["--tenant", "acme"], "e"),
        (["--search", "acm"], "e"),
        (["--since", "1h"], "edcba"),
        (["--since", "2999-01-01T00:00Z"], ""),
        (["--before", "2020-01-01T00:00:00+01:00"], ""),
        (["--worker", "w"], "ba"),
        (["--reason", "attempts"], "b"),
        (["--label", "a=1"], "e"),
        (["--label", "a=2"], ""),
        (["--state", "waiting", "--queue", "default", "--task", "t"], "e"),
    ],
)
def test_filters_narrow_a_list(cli: Cli, flags: list[str], ids: str) -> None:
    cli("queue", "create", "mail")
    seed.done("a")
    seed.dead("b")
    seed.enqueue("c", queue="mail")
    seed.enqueue("d", task="send")
    seed.enqueue("e", tenant="acme", labels={"a": "1"})
    assert [job["id"] for job in cli("job", "list", *flags, "--json").json] == list(ids)
    table = cli("list", *flags).out.splitlines()[1:]
    assert [line.split()[0] for line in table] == list(ids)


def test_a_long_list_is_read_in_pages(cli: Cli) -> None:
    for id_ in "abcde":
        seed.enqueue(id_)
    ran = cli("list", "--limit", "2")
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == ["e", "d"]
    after = ran.err.strip().partition("--after ")[2]
    rest = cli("list", "--limit", "9", "--after", after, "--json").json
    assert [job["id"] for job in rest] == ["c", "b", "a"]


def test_the_list_shows_commands_and_due_times(cli: Cli) -> None:
    cli("enqueue", "--delay", "1h", "--", "echo", "a b")
    line = cli("list").out.splitlines()[1]
    assert "echo 'a b'" in line
    assert "due in 59m" in line


def test_show_prints_a_job_as_text(cli: Cli) -> None:
    seed.retried("j", text="no route")
    expedite = Expedite()
    seed.with_app(lambda app: app.amend(JobFilter(ids=("j",)), expedite))
    seed.note(seed.lease(), b"one\ntwo")
    text = cli("job", "show", "j").out
    for part in (
        "id                j",
        "attempts          2",
        "retried (attempt 1) by w: no route",
        "one",
    ):
        assert part in text
    lines = cli("job", "timeline", "j").out.splitlines()
    assert [line.split()[1] for line in lines] == ["enqueued", "retried", "expedited", "leased"]
    events = cli("job", "timeline", "j", "--json").json
    assert [event["event"] for event in events] == ["enqueued", "retried", "expedited", "leased"]
    assert events[1]["error"] == "no route"


def test_no_control_character_of_a_job_reaches_the_terminal(cli: Cli) -> None:
    seed.enqueue("e", payload={HOSTILE: HOSTILE}, tenant="x\u202e")
    taken = seed.lease(worker="w\u202e")
    seed.note(taken, HOSTILE.encode())
    seed.settle(taken, Retry(60_000, Failure(message=HOSTILE)))
    lines = [
        ["job", "show", "e"],
        ["job", "timeline", "e"],
        ["job", "explain", "e"],
        ["job", "logs", "e"],
        ["list"],
        ["job", "show", HOSTILE],
        ["job", "cancel", HOSTILE],
        ["queue", "show", HOSTILE],
    ]
    for line in lines + [[*line, "--json"] for line in lines]:
        ran = cli(*line)
        assert ran.out or ran.err
        for char in (ran.out + ran.err).replace("\n", ""):
            assert char.isprintable(), (line, char)


def test_explain_prints_all_causes_and_remedies(cli: Cli) -> None:
    seed.retried("j", text="no route")
    seed.enqueue("k")
    cli("queue", "pause", "default", "--text", "moving house")
    answer = cli("job", "explain", "j", "--json").json
    assert answer["state"] == "waiting"
    assert [reason["code"] for reason in answer["reasons"]] == [
        "retry_backoff",
        "queue_paused",
        "queue_unserved",
        "jobs_ahead",
    ]
    text = cli("job", "explain", "j").out
    assert "attempt 1 of 4 failed (no route)" in text
    assert ": moving house [" in text
    assert "holdfast queue resume default" in text
    cli("queue", "resume", "default")
    seed.worker("w")
    assert [reason["code"] for reason in cli("job", "explain", "k", "--json").json["reasons"]] == [
        "ready"
    ]


def test_explain_counts_only_jobs_that_can_start_before(cli: Cli) -> None:
    seed.worker("w", tasks=("t",))
    seed.enqueue("unknown", task="nobody-knows")
    seed.enqueue("expired", expires="1ms")
    seed.enqueue("later", priority=9, delay="1h")
    seed.enqueue("early")
    seed.enqueue("j")
    [reason] = cli("job", "explain", "j", "--json").json["reasons"]
    assert reason["text"].startswith("1 waiting job of its queue must start first")
    seed.enqueue("typo", task="tt")
    reasons = cli("job", "explain", "typo", "--json").json["reasons"]
    assert [reason["code"] for reason in reasons] == ["task_unknown", "jobs_ahead"]
    assert reasons[1]["text"].startswith("2 waiting jobs")


def test_explain_counts_jobs_in_lease_order(cli: Cli) -> None:
    seed.worker("w")
    seed.enqueue("low", priority=-1)
    seed.enqueue("early")
    seed.enqueue("j")
    seed.enqueue("late")
    seed.enqueue("high", priority=9)
    [reason] = cli("job", "explain", "j", "--json").json["reasons"]
    assert reason["text"].startswith("2 waiting jobs")
    [reason] = cli("job", "explain", "high", "--json").json["reasons"]
    assert reason["code"] == "ready"


def test_explain_reads_a_bounded_number_of_jobs(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.ops.jobs.explain._PAGE", 2)
    monkeypatch.setattr("holdfast.ops.jobs.explain._PAGES_MAX", 2)
    seed.worker("w")
    for number in range(7):
        seed.enqueue(f"j{number}")
    [reason] = cli("job", "explain", "j6", "--json").json["reasons"]
    assert reason["text"].startswith("at least 3 waiting jobs")


def test_logs(cli: Cli) -> None:
    seed.enqueue("j")
    assert cli("job", "logs", "j").err == "j has no output\n"
    seed.note(seed.lease(), b"one\ntwo")
    assert cli("job", "logs", "j") == (0, "one\ntwo\n", "")
    assert cli("job", "logs", "j", "--json").json == {
        "id": "j",
        "state": "leased",
        "attempt": 1,
        "output": "one\ntwo",
    }
    assert cli("job", "logs", "j", "--attempt", "1").out == "one\ntwo\n"
    refused = cli("job", "logs", "j", "--attempt", "2")
    assert (refused.code, refused.out) == (2, "")
    assert "job j has had 1 attempt, and no attempt 2" in refused.err


def test_logs_are_followed_until_the_job_ends(cli: Cli, tmp_path: Path) -> None:
    seed.enqueue("j")
    taken = seed.lease()
    seed.note(taken, "é".encode()[:1])
    with subprocess.Popen(
        command("job", "logs", "-f", "j"),
        cwd=tmp_path,
        env=environment(PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        seed.note(taken, "é one\n".encode())
        assert process.stdout.readline() == "é one\n"
        seed.note(taken, "é one\ntwo\n".encode())
        assert process.stdout.readline() == "two\n"
        seed.settle(taken, Complete())
        assert (process.stdout.read(), process.stderr.read()) == ("", "j is done\n")
    assert process.returncode == 0
    ran = cli("--json", "job", "logs", "j", "--follow")
    assert [json.loads(line) for line in ran.out.splitlines()] == [
        {"output": "é one\ntwo\n"},
        {"id": "j", "state": "done"},
    ]


@pytest.mark.parametrize(
    ("seen", "output", "fresh"),
    [
        (b"", b"ab", b"ab"),
        (b"ab", b"ab", b""),
        (b"ab", b"abc", b"c"),
        (b"ab", b"x", b"x"),
        (b"a" + b"x" * 300, b"head" + b"x" * 300 + b"new", b"new"),
        (b"y" * 300, b"head" + b"x" * 300, b"head" + b"x" * 300),
    ],
)
def test_only_new_output_is_printed(seen: bytes, output: bytes, fresh: bytes) -> None:
    assert new_output(seen, output) == fresh


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (["job", "show", "no"], 3, 'no job has the id "no"'),
        (["job", "explain", "no"], 3, '"no"'),
        (["job", "timeline", "no"], 3, '"no"'),
        (["job", "logs", "no", "-f"], 3, '"no"'),
        (["list", "--state", "sleeping"], 2, "sleeping"),
        (["list", "--since", "soon"], 2, 'since "soon"'),
        (["list", "--since", "2026-01-01"], 2, "no time zone"),
        (["list", "--since", "2026-1-x"], 2, "expected an age"),
        (["list", "--label", "a"], 2, 'label "a": expected NAME=VALUE'),
        (["list", "--limit", "0"], 2, "limit"),
        (["list", "--reason", "nothing"], 2, "reason"),
    ],
)
def test_an_error_names_the_value(cli: Cli, line: list[str], code: int, says: str) -> None:
    seed.begin()
    ran = cli(*line)
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
    assert says in ran.err


def test_job_commands_as_a_program(tmp_path: Path) -> None:
    assert run_program(tmp_path, "enqueue", '{"id":"j1","command":"sleep 2"}').code == 0
    shown = run_program(tmp_path, "--json", "job", "show", "j1", name="queuectl").json
    assert (shown["id"], shown["task"], shown["state"]) == ("j1", "command", "waiting")
    assert run_program(tmp_path, "job", "show", "j2").code == 3


def test_a_job_that_waits_after_a_failed_attempt_is_shown_as_failed(cli: Cli) -> None:
    seed.retried("again")
    seed.enqueue("new")
    seed.enqueue("later", delay="1h")
    for word, ids in {
        "failed": ["again"],
        "pending": ["later", "new"],
        "scheduled": ["later"],
    }.items():
        assert [job["id"] for job in cli("list", "--state", word, "--json").json] == ids
    line = cli("list", "--state", "retrying").out.splitlines()[1]
    assert line.split()[:4] == ["again", "default", "t", "failed,"]
    head, row = (line.split() for line in cli("status").out.splitlines()[:2])
    shown = dict(zip(head, row, strict=False))
    assert (shown["ready"], shown["delayed"], shown["failed"]) == ("1", "2", "1")
    [queue] = cli("status", "--json").json["queues"]
    assert (queue["failed"], queue["estimated"]) == (1, [])
    assert cli("queue", "clear", "default", "--state", "failed", "--yes").out.startswith(
        "deleted 1"
    )
    assert [job["id"] for job in cli("list", "--json").json] == ["later", "new"]
