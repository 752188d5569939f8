"""The charts in the docs are those of the history, and every chart is well-formed and readable."""

from __future__ import annotations

import datetime as dt
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from bench import charts, history
from bench.__main__ import BENCHES
from bench.charts import CHARTS, Plot, Scale, apart, markdown, plot_of, svg
from bench.history import Commit, Row, Run, Table
from bench.report import record

DRAW = "run: .venv/bin/python -m bench.charts"
NAMES = [chart.name for chart in CHARTS]
PAGE = history.FOLDER / charts.PAGE
TEXT = "{http://www.w3.org/2000/svg}text"


CHART = next(chart for chart in CHARTS if chart.name == "engines-sqlite")


def measured(ratio: float, commit: Commit | None = None) -> Run:
    """A run in which all lines of CHART have a ratio and the same goal."""
    rows = tuple(
        Row(engine=line.engine, metric=line.metric, value=1, unit="s", ratio=ratio, goal=0.5)
        for line in CHART.lines
    )
    return Run(
        bench="engines",
        command="./hf bench engines",
        version="0.1.0",
        commit=commit,
        date=dt.date(2026, 11, 15),
        system="Linux x86_64",
        cpus=2,
        python="3.11.7",
        load=1.0,
        tables=(Table(title=f"sqlite, {CHART.table}", rows=rows),),
    )


def plot_with(count: int) -> Plot:
    commits = [Commit(hash=f"{number:07x}abc", dirty=number % 2 == 1) for number in range(count)]
    return plot_of(CHART, [measured(0.6, commit) for commit in commits])


@pytest.mark.parametrize("plot", charts.plots(), ids=NAMES)
def test_a_chart_is_current(plot: Plot) -> None:
    assert (history.FOLDER / f"{plot.chart.name}.svg").read_text() == svg(plot), DRAW


def test_the_page_is_current(tmp_path: Path) -> None:
    page = tmp_path / "history.md"
    page.write_text(PAGE.read_text())
    for plot in charts.plots():
        record(page, plot.chart.name, markdown(plot))
    assert page.read_text() == PAGE.read_text(), DRAW


def test_the_folder_has_only_known_charts_and_histories() -> None:
    assert {path.stem for path in history.FOLDER.glob("*.svg")} == set(NAMES)
    for path in history.FOLDER.glob("*.jsonl"):
        assert path.stem in BENCHES
        assert history.read(path.stem)
        assert f"({path.name})" in PAGE.read_text(), "add it to the list of files"


@pytest.mark.parametrize("plot", charts.plots(), ids=NAMES)
def test_every_line_was_measured_at_some_run(plot: Plot) -> None:
    lines = zip(plot.chart.lines, plot.points, strict=True)
    assert [line for line, points in lines if not points] == [], "renamed in the benchmark?"


@pytest.mark.parametrize("count", [0, 1, 2, 5, history.RUNS_MAX])
def test_a_chart_of_any_length_is_whole(count: int) -> None:
    text = svg(plot_with(count))
    root = ET.fromstring(text)
    classes = [each.get("class", "").split()[:1] for each in root.iter()]
    assert classes.count(["dot"]) == count * len(CHART.lines)
    assert classes.count(["line"]) == (len(CHART.lines) if count > 1 else 0)
    assert classes.count(["goal"]) == (1 if count else 0)
    texts = ["".join(each.itertext()) for each in root.iter(TEXT)]
    assert CHART.title in texts
    assert ("No run was recorded yet." in texts) == (count == 0)
    assert count != 2 or {"0.1.0 0000000", "0.1.0 0000001+"} <= set(texts)
    for number in re.findall(r' (?:x|x1|x2|cx)="(\S+)"', text):
        assert 0 <= float(number) <= charts.WIDTH
    for number in re.findall(r' (?:y|y1|y2|cy)="(\S+)"', text):
        assert 0 <= float(number) <= charts.HEIGHT


def test_a_chart_has_a_title_and_a_description() -> None:
    text = svg(plot_of(CHART, [measured(0.52), measured(12.34)]))
    assert f'<title id="title">{CHART.title}</title>' in text
    assert "lease: 0.52 at first, 12.3 at last; goal 0.5." in text
    assert "prefers-color-scheme: dark" in text
    assert "<script" not in text


def test_runs_without_the_lines_of_a_chart_are_left_out() -> None:
    empty = msgspec.structs.replace(measured(0.6), tables=())
    other = Table(title="another table", rows=measured(0.6).tables[0].rows)
    moved = msgspec.structs.replace(empty, tables=(other,))
    assert plot_of(CHART, [empty, measured(0.7), moved]).runs == (measured(0.7),)


def test_the_table_has_the_newest_runs() -> None:
    lines = markdown(plot_with(6)).splitlines()
    assert lines[2].count("2026-11-15") == charts.COLUMNS_MAX
    assert "`0.1.0 0000005+` | goal |" in lines[2]
    assert lines[4] == "| enqueue | 0.60 | 0.60 | 0.60 | 0.60 | 0.5 |"


def test_labels_of_runs_do_not_overlap_and_have_the_last_run() -> None:
    for count in range(2, history.RUNS_MAX + 1):
        scale = Scale(count, 0.5, 1.0)
        labelled = list(scale.labelled_runs())
        assert labelled[0] == count - 1
        for right, left in pairwise(labelled):
            assert scale.x(right) - scale.x(left) >= charts.X_LABEL_WIDTH
    assert list(Scale(1, 0.5, 1.0).labelled_runs()) == [0]


def test_labels_of_lines_are_moved_apart_inside_the_plot() -> None:
    top, bottom, gap = charts.TOP, charts.BOTTOM, charts.LABEL_GAP
    assert apart([]) == []
    assert apart([100.0, 200.0]) == [100.0, 200.0]
    assert apart([150.0, 150.0]) == [150 - gap / 2, 150 + gap / 2]
    for place in (top, 150, bottom):
        moved = apart([float(place)] * 8)
        assert all(right - left >= gap - 1e-9 for left, right in pairwise(moved))
        assert top <= moved[0] < moved[-1] <= bottom


@pytest.mark.parametrize(
    ("low", "high"), [(0.5, 1.0), (0.31, 0.62), (0.8, 1.7), (0.4, 9.0), (0.5, 200), (1e-3, 1e6)]
)
def test_the_scale_has_a_few_ticks(low: float, high: float) -> None:
    ticks = Scale(3, low, high).ticks()
    assert 3 <= len(ticks) <= 10
    assert all(low <= tick <= high for tick in ticks)


def test_a_ratio_of_zero_is_drawn_at_the_bottom() -> None:
    plot = plot_of(CHART, [measured(0.0)])
    assert 'class="dot c0"' in svg(plot)
    assert charts.BOTTOM - 20 < Scale.over(plot).y(0) < charts.BOTTOM
