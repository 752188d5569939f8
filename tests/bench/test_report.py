"""The common format of benchmark results."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from bench.report import Report, print_table, record, to_markdown, write_json

KEYS = ["bench", "engine", "metric", "value", "unit", "reference", "ratio", "goal"]


@pytest.fixture
def report() -> Report:
    report = Report("engines")
    report.section("rates; the reference is raw")
    report.rate("sqlite", "enqueue", 40_000.0, unit="jobs/s", reference=100_000.0, goal=0.5)
    report.rate("sqlite", "settle", 60_000.0, unit="jobs/s", reference=100_000.0, goal=0.5)
    report.section("costs; the reference is the bound")
    report.cost("sqlite", "memory", 50.0, unit="MB", reference=150, goal=1)
    report.cost("sqlite", "idle", 0.0, unit="% of a core", reference=1, goal=1)
    report.cost("sqlite", "wake-up", 1.5, unit="ms")
    return report


def test_a_higher_ratio_is_always_better(report: Report) -> None:
    assert [result.ratio for result in report.results] == [0.4, 0.6, 3.0, 1_000_000.0, None]
    assert [result.met for result in report.results] == [False, True, True, True, None]
    assert [result.metric for result in report.missed] == ["enqueue"]


def test_json_is_a_list_of_the_eight_keys(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_json(path, [report, report])
    results = json.loads(path.read_text())
    assert len(results) == 10
    assert all(list(result) == KEYS for result in results)
    assert results[0] == dict(
        zip(KEYS, ["engines", "sqlite", "enqueue", 40000, "jobs/s", 100000, 0.4, 0.5], strict=True)
    )
    assert results[4]["reference"] is results[4]["ratio"] is results[4]["goal"] is None


def test_a_goal_without_a_reference_counts_as_missed() -> None:
    report = Report("engines")
    report.section("a mistake")
    report.rate("sqlite", "enqueue", 1.0, unit="jobs/s", goal=0.5)
    assert report.missed


def test_the_table_shows_met_and_missed_goals(report: Report) -> None:
    text = io.StringIO()
    print_table(report, Console(file=text, width=120))
    lines = text.getvalue().splitlines()
    assert any("40,000 jobs/s" in line and line.rstrip().endswith("missed") for line in lines)
    assert any("50.0 MB" in line and line.rstrip().endswith("met") for line in lines)


def test_record_replaces_only_the_text_between_the_markers(report: Report, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- record: engines -->\nold\n<!-- end of record: engines -->\nafter\n"
    )
    for _ in range(2):
        record(page, "engines", to_markdown(report))
    text = page.read_text()
    assert text.startswith("before\n<!-- record: engines -->\n**rates;")
    assert text.endswith("<!-- end of record: engines -->\nafter\n")
    assert "old" not in text
    assert text.count("| sqlite | enqueue | 40,000 jobs/s | 100,000 | 0.40 | 0.5 |") == 1


def test_record_does_not_change_a_page_without_markers(report: Report, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing to record between\n")
    with pytest.raises(SystemExit, match="record: engines"):
        record(page, "engines", to_markdown(report))
    assert page.read_text() == "nothing to record between\n"
