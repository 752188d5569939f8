"""`cleanup`: only what is finished and old goes, and never before it is in the archive."""

import json
from pathlib import Path

import pytest

from holdfast.core.codec import decode_job
from holdfast.core.model import JobFilter
from holdfast.core.verdict import Redrive
from holdfast.upkeep import Archive
from tests.cli import making
from tests.cli.program import Cli


@pytest.fixture
def finished(cli: Cli) -> Cli:
    making.done("done", {"n": 1}, b"said")
    making.dead("dead")
    making.enqueue("wait")
    return cli


def left(cli: Cli) -> list[str]:
    return [job["id"] for job in cli("list", "--json").json]


def test_what_is_younger_stays(finished: Cli) -> None:
    assert finished("cleanup", "--days", "1").out == "deleted 0\n"
    assert left(finished) == ["wait", "dead", "done"]


def test_a_dry_run_counts(finished: Cli) -> None:
    assert finished("cleanup", "--days", "0", "--dry-run").out == "would delete 2 jobs\n"
    ran = finished("cleanup", "--days", "0", "--dry-run", "--json")
    assert ran.json == {"found": 2, "more": False, "deleted": 0}
    assert left(finished) == ["wait", "dead", "done"]


@pytest.mark.parametrize(
    ("flags", "stay"),
    [
        ([], ["wait"]),
        (["--state", "done"], ["wait", "dead"]),
        (["--state", "dead", "--state", "cancelled"], ["wait", "done"]),
        (["--queue", "mail"], ["wait", "dead", "done"]),
    ],
)
def test_some_or_all(finished: Cli, flags: list[str], stay: list[str]) -> None:
    finished("queue", "create", "mail")
    ran = finished("cleanup", "--days", "0", *flags, "--json")
    assert ran.json == {"deleted": 3 - len(stay), "archived": 0}
    assert left(finished) == stay


def test_the_archive_has_whole_jobs(finished: Cli, tmp_path: Path) -> None:
    ran = finished("cleanup", "--days", "0", "--archive", "old.jsonl")
    assert ran.out == "deleted 2, 2 kept in old.jsonl\n"
    lines = (tmp_path / "old.jsonl").read_bytes().splitlines()
    jobs = {job.id: job for job in map(decode_job, lines)}
    assert jobs["done"].output == b"said"
    assert json.loads(jobs["done"].result or b"") == {"n": 1}
    assert jobs["dead"].failures


def test_nothing_is_deleted_that_could_not_be_archived(finished: Cli) -> None:
    ran = finished("cleanup", "--days", "0", "--archive", "/proc/nowhere/old.jsonl")
    assert (ran.code, ran.out) == (1, "")
    assert "/proc/nowhere/old.jsonl cannot be written" in ran.err
    assert left(finished) == ["wait", "dead", "done"]


def test_a_job_that_is_retried_meanwhile_stays(
    finished: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Archive.write

    def slow(self: Archive, jobs: list[object]) -> None:
        write(self, jobs)  # type: ignore[arg-type]
        making.with_app(lambda app: app.amend(JobFilter(ids=("dead",)), Redrive()))

    monkeypatch.setattr(Archive, "write", slow)
    assert finished("cleanup", "--days", "0", "--archive", "old.jsonl").code == 0
    assert left(finished) == ["wait", "dead"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ([], "--days"),
        (["--days", "-1"], "days -1"),
        (["--days", "nan"], "days nan"),
        (["--days", "1e9"], "days 1e+09"),
        (["--days", "1", "--state", "waiting"], "only finished"),
    ],
)
def test_an_error_names_the_value(cli: Cli, line: list[str], says: str) -> None:
    ran = cli("cleanup", *line)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert says in ran.err
