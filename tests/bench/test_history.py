"""The history of recorded benchmarks: appending, replacing, and lines that cannot be read."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import __main__ as bench_main
from bench import charts, history
from bench.history import Commit, HistoryError, Run, add, current_commit, path_of, read, run_of
from bench.report import Report

COMMAND = "./hf bench engines"


@pytest.fixture
def report() -> Report:
    report = Report("engines")
    report.section("sqlite, full durability; the reference is raw SQL")
    report.rate("sqlite", "lease, batch 100", 40_000 / 3, unit="jobs/s", reference=2e4, goal=0.5)
    report.cost("sqlite", "wake-up", 1.5, unit="ms")
    return report


def run_at(number: int, report: Report, command: str = COMMAND) -> Run:
    return run_of(report, command, Commit(hash=f"{number:010x}", dirty=False))


def test_a_run_has_the_machine_the_commit_and_all_rows(report: Report, tmp_path: Path) -> None:
    add(run_at(7, report), tmp_path)
    line = json.loads(path_of("engines", tmp_path).read_text())
    assert list(line) == (
        "bench command version commit date system cpus python load tables".split()
    )
    assert line["commit"] == {"hash": "0000000007", "dirty": False}
    assert dt.date.fromisoformat(line["date"]) <= dt.datetime.now(dt.UTC).date()
    [table] = line["tables"]
    assert table["rows"] == [
        {
            "engine": "sqlite",
            "metric": "lease, batch 100",
            "value": 13333.3,
            "unit": "jobs/s",
            "reference": 20000,
            "ratio": 0.667,
            "goal": 0.5,
        },
        {"engine": "sqlite", "metric": "wake-up", "value": 1.5, "unit": "ms"},
    ]
    assert read("engines", tmp_path) == [run_at(7, report)]
    assert read("drain", tmp_path) == []


def test_the_same_commit_and_command_replace_the_earlier_run(
    report: Report, tmp_path: Path
) -> None:
    other = f"{COMMAND} --engine sqlite"
    for number, command in ((1, COMMAND), (1, other), (2, COMMAND), (1, COMMAND)):
        add(run_at(number, report, command), tmp_path)
    found = [
        (run.commit and int(run.commit.hash, 16), run.command) for run in read("engines", tmp_path)
    ]
    assert found == [(1, other), (2, COMMAND), (1, COMMAND)]


def test_without_git_a_run_of_the_same_version_is_replaced(report: Report, tmp_path: Path) -> None:
    for _ in range(2):
        add(run_of(report, COMMAND, None), tmp_path)
    assert [run.commit for run in read("engines", tmp_path)] == [None]


def test_the_oldest_runs_are_removed(report: Report, tmp_path: Path) -> None:
    for number in range(history.RUNS_MAX + 2):
        add(run_at(number, report), tmp_path)
    found = read("engines", tmp_path)
    assert len(found) == history.RUNS_MAX
    assert found[0] == run_at(2, report)
    assert [path.name for path in tmp_path.iterdir()] == ["engines.jsonl"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bench": "drain"}, 'expected a run of "engines", not of "drain"'),
        ({"cpus": "many"}, "cpus"),
        ({"cpus": 0}, "cpus"),
        ({"date": "yesterday"}, "date"),
        ({"load": -1}, "load"),
        ({"version": "0.1<script>"}, "version"),
        ({"commit": {"hash": "main", "dirty": False}}, "commit.hash"),
        ({"command": "two\nlines"}, "command"),
        ({"commnad": "./hf"}, "commnad"),
        ({"tables": [{"title": "t"}]}, "rows"),
        ({"tables": [{"title": "t" * 301, "rows": []}]}, "title"),
        (
            {"tables": [{"title": "t", "rows": [{"engine": "e", "metric": "m", "unit": "u"}]}]},
            "value",
        ),
    ],
    ids=str,
)
def test_a_wrong_field_is_an_error_with_file_and_line(
    change: dict[str, Any], said: str, report: Report, tmp_path: Path
) -> None:
    add(run_at(1, report), tmp_path)
    good = msgspec.json.decode(msgspec.json.encode(run_at(2, report)))
    with path_of("engines", tmp_path).open("a") as file:
        file.write(json.dumps(good | change) + "\n")
    with pytest.raises(HistoryError, match=r"engines\.jsonl, line 2: ") as raised:
        read("engines", tmp_path)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "line",
    [
        b"<<<<<<< ours",
        b'{"bench": "engines"',
        b"[" * 100_000,
        b'{"tables": ' + b"[" * 100_000,
        b"\xff\xfe",
        b"NaN",
        b"null",
        b'{"load": 1e999}',
    ],
    ids=lambda line: repr(line[:20]),
)
def test_a_line_that_is_no_run_is_an_error_with_file_and_line(
    line: bytes, report: Report, tmp_path: Path
) -> None:
    path = path_of("engines", tmp_path)
    path.write_bytes(b"\n" + line + b"\n")
    for attempt in (lambda: read("engines", tmp_path), lambda: add(run_at(1, report), tmp_path)):
        with pytest.raises(HistoryError, match=r"engines\.jsonl, line 2: "):
            attempt()
    assert path.read_bytes() == b"\n" + line + b"\n"


def test_two_runs_of_the_same_commit_and_command_are_an_error(
    report: Report, tmp_path: Path
) -> None:
    add(run_at(1, report), tmp_path)
    path = path_of("engines", tmp_path)
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(HistoryError, match=r"line 2: repeats .* of line 1"):
        read("engines", tmp_path)


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "BYTES_MAX", 10)
    path_of("engines", tmp_path).write_text("\n" * 11)
    with pytest.raises(HistoryError, match="11 bytes, expected at most 10"):
        read("engines", tmp_path)


def test_a_number_that_json_cannot_hold_is_not_written(report: Report, tmp_path: Path) -> None:
    report.rate("sqlite", "enqueue", float("nan"), unit="jobs/s")
    with pytest.raises(HistoryError, match="the new line of"):
        add(run_at(1, report), tmp_path)
    assert not path_of("engines", tmp_path).exists()


def test_the_commit_is_that_of_the_checkout_and_docs_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("before")
    (tmp_path / "code.py").write_text("before")
    assert current_commit(tmp_path) is None
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "first"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    head = current_commit(tmp_path)
    assert head is not None
    assert len(head.hash) == history.COMMIT_DIGITS
    assert head.dirty is False
    (tmp_path / "docs" / "page.md").write_text("after")
    assert current_commit(tmp_path) == head
    (tmp_path / "code.py").write_text("after")
    assert current_commit(tmp_path) == Commit(hash=head.hash, dirty=True)
    assert current_commit(tmp_path / "docs") is None, "a folder of another repository"


def test_record_writes_the_table_the_history_and_the_charts(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def bench(options: object, log: object) -> Report:
        return report

    page = tmp_path / "benchmarks.md"
    page.write_text("<!-- record: engines -->\n<!-- end of record: engines -->\n")
    shutil.copy(history.FOLDER / charts.PAGE, tmp_path)
    monkeypatch.setattr(bench_main, "PAGE", page)
    monkeypatch.setattr(bench_main, "HISTORY", tmp_path)
    monkeypatch.setattr(bench_main, "BENCHES", {"engines": bench})
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert bench_main.main(["engines", "--jobs", "500", "--no-peers", "--record"]) == 0
    [run] = read("engines", tmp_path)
    assert run.command == "./hf bench engines --jobs 500 --no-peers"
    assert f"{run.date}, {run.machine}: `{run.command}`\n\n**sqlite," in page.read_text()
    assert f"{run.date}</text>" in (tmp_path / "engines-sqlite.svg").read_text()
    assert "| lease | 0.67 | 0.5 |" in (tmp_path / charts.PAGE).read_text()


def test_what_cannot_be_recorded_ends_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_main, "HISTORY", tmp_path)
    monkeypatch.setattr(bench_main, "BENCHES", {"engines": None})
    with pytest.raises(SystemExit, match="--quick"):
        bench_main.main(["engines", "--quick", "--record"])
    path_of("engines", tmp_path).write_text("broken\n")
    with pytest.raises(SystemExit, match=r"hf bench: .*engines\.jsonl, line 1: "):
        bench_main.main(["engines", "--record"])
