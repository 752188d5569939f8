"""`cleanup` deletes only old finished jobs, and never before they are archived."""

import io
import json
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.core.model import Job, JobFilter
from holdfast.core.verdict import Redrive
from holdfast.ops.jobs.bulk import Archive
from tests.cli import seed
from tests.cli.program import Cli


@pytest.fixture
def finished(cli: Cli) -> Cli:
    seed.done("done", {"n": 1}, b"said")
    seed.dead("dead")
    seed.enqueue("wait")
    return cli


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def left(cli: Cli) -> list[str]:
    return [job["id"] for job in cli("list", "--json").json]


def test_younger_jobs_stay(finished: Cli) -> None:
    assert finished("cleanup", "--days", "1", "--dead").out == "deleted 0 jobs\n"
    assert finished("cleanup", "--dead").out == "deleted 0 jobs\n"
    assert left(finished) == ["wait", "dead", "done"]


def test_a_dry_run_counts(finished: Cli) -> None:
    assert finished("cleanup", "--days", "0", "--dry-run").out == "would delete 1 job\n"
    ran = finished("cleanup", "--days", "0", "--dead", "--dry-run", "--json")
    assert ran.json == {"found": 2, "more": False, "deleted": 0}
    assert left(finished) == ["wait", "dead", "done"]


def test_the_age_is_a_setting(finished: Cli) -> None:
    assert finished("config", "set", "cleanup-days", "0").out == "cleanup-days is 0 from now on\n"
    assert finished("cleanup").out == "deleted 1 job\n"
    assert left(finished) == ["wait", "dead"]


@pytest.mark.parametrize(
    ("flags", "stay"),
    [
        ([], ["wait", "dead"]),
        (["--dead"], ["wait"]),
        (["--state", "done"], ["wait", "dead"]),
        (["--state", "dead", "--state", "cancelled"], ["wait", "done"]),
        (["--queue", "mail"], ["wait", "dead", "done"]),
    ],
)
def test_flags_narrow_the_jobs_that_are_deleted(
    finished: Cli, flags: list[str], stay: list[str]
) -> None:
    finished("queue", "create", "mail")
    ran = finished("cleanup", "--days", "0", *flags, "--json")
    assert ran.json == {"deleted": 3 - len(stay), "archived": 0}
    assert left(finished) == stay


@pytest.mark.parametrize("answer", ["y\n", "n\n"])
def test_a_terminal_is_asked_for_confirmation(
    finished: Cli, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    ran = finished("cleanup", "--days", "0", "--dead")
    assert ran.err.startswith("Delete 2 jobs permanently? [y/N] ")
    agreed = answer == "y\n"
    assert (ran.code, ran.out) == ((0, "deleted 2 jobs\n") if agreed else (1, ""))
    assert left(finished) == (["wait"] if agreed else ["wait", "dead", "done"])


@pytest.mark.parametrize("flags", [["--yes"], ["--archive", "old.jsonl"]])
def test_yes_or_an_archive_needs_no_confirmation(
    finished: Cli, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    ran = finished("cleanup", "--days", "0", "--dead", *flags)
    assert (ran.code, ran.err) == (0, "")
    assert left(finished) == ["wait"]


def test_the_archive_has_complete_jobs(finished: Cli, tmp_path: Path) -> None:
    ran = finished("cleanup", "--days", "0", "--dead", "--archive", "old.jsonl")
    assert ran.out == "deleted 2 jobs, archived 2 in old.jsonl\n"
    lines = (tmp_path / "old.jsonl").read_bytes().splitlines()
    jobs = {job.id: job for job in (msgspec.json.decode(line, type=Job) for line in lines)}
    assert jobs["done"].output == b"said"
    assert json.loads(jobs["done"].result or b"") == {"n": 1}
    assert jobs["dead"].failures


def test_jobs_that_cannot_be_archived_are_not_deleted(finished: Cli) -> None:
    ran = finished("cleanup", "--days", "0", "--archive", "/proc/old.jsonl")
    assert (ran.code, ran.out) == (1, "")
    assert "/proc/old.jsonl cannot be written" in ran.err
    ran = finished("cleanup", "--archive", "/proc/nowhere/old.jsonl")
    assert (ran.code, "there is no folder /proc/nowhere; create it first" in ran.err) == (2, True)
    assert left(finished) == ["wait", "dead", "done"]


def test_a_job_that_is_retried_during_the_cleanup_stays(
    finished: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Archive.write

    def slow(self: Archive, jobs: list[object]) -> None:
        write(self, jobs)  # type: ignore[arg-type]
        seed.with_app(lambda app: app.amend(JobFilter(ids=("dead",)), Redrive()))

    monkeypatch.setattr(Archive, "write", slow)
    assert finished("cleanup", "--days", "0", "--dead", "--archive", "old.jsonl").code == 0
    assert left(finished) == ["wait", "dead"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["--days", "-1"], "days -1"),
        (["--days", "nan"], "days nan"),
        (["--days", "1e9"], "days 1e+09"),
        (["--days", "1", "--state", "waiting"], "only finished"),
    ],
)
def test_an_error_names_the_value(cli: Cli, line: list[str], says: str) -> None:
    seed.begin()
    ran = cli("cleanup", *line)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert says in ran.err
