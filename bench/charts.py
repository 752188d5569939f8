"""Charts of the recorded benchmarks: SVG files drawn from the history, and tables on their page.

`python -m bench.charts` draws all of them again, for example after a merge of the history.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from bench import history
from bench.history import Run
from bench.report import record

PAGE = "history.md"
"""The page in the folder of the history that shows the charts."""
COLUMNS_MAX = 4
"""Runs in the table below a chart."""

WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 56, 500, 84, 276
"""The edges of the plot. The labels of the lines are on its right."""
INSET = 36
LABEL_GAP = 17
X_LABEL_WIDTH = 116
SPAN_MIN = 2.0
"""The smallest factor between the ends of the scale, so that noise does not look like a change."""
RATIO_MIN = 0.001
TICKS = (
    (1,),
    (1, 3),
    (1, 2, 5),
    (1, 1.5, 2, 3, 4, 5, 6, 8),
    (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9),
)

STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #57606a; }
.title { font-size: 16px; font-weight: 600; fill: #1f2328; }
.value { font-weight: 600; }
.card { fill: #ffffff; stroke: #d0d7de; }
.grid { stroke: #d8dee4; }
.goal { stroke: currentColor; stroke-width: 1.5; stroke-dasharray: 5 4; }
.leader { stroke: currentColor; stroke-dasharray: 1 3; }
.line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
.dot { fill: currentColor; stroke: #ffffff; stroke-width: 1.5; }
.label { fill: currentColor; }
.c0 { color: #0a5cb8; } .c1 { color: #a8480a; } .c2 { color: #1f7a3d; }
.c3 { color: #8034a5; } .c4 { color: #8a6100; } .plain { color: #57606a; }
@media (prefers-color-scheme: dark) {
  text { fill: #9da7b3; }
  .title { fill: #e6edf3; }
  .card { fill: #161b22; stroke: #343b45; }
  .grid { stroke: #2b323b; }
  .dot { stroke: #161b22; }
  .label { fill: currentColor; }
  .c0 { color: #6cb0ff; } .c1 { color: #f0975a; } .c2 { color: #63cb83; }
  .c3 { color: #cf9cf0; } .c4 { color: #dcb450; } .plain { color: #9da7b3; }
}
""".strip()


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart: the ratios of one engine and metric."""

    label: str
    engine: str
    metric: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Ratios of one benchmark over its recorded runs, of tables whose title contains `table`."""

    name: str
    bench: str
    title: str
    subtitle: str
    table: str
    lines: tuple[Line, ...]


def _peers(engine: str, peers: dict[str, str]) -> tuple[Line, ...]:
    return tuple(
        Line(label, engine, f"holdfast, compared with {peer}") for peer, label in peers.items()
    )


def _verbs(engine: str) -> tuple[Line, ...]:
    verbs = ("enqueue", "lease", "settle", "cycle")
    return tuple(Line(verb, engine, f"{verb}, batch 100") for verb in verbs)


CHARTS = (
    Chart(
        "drain-sqlite",
        "drain",
        "Jobs drained by workers on SQLite",
        "Holdfast's rate over that of each peer",
        "drained; the reference is the peer",
        _peers(
            "sqlite",
            {
                "huey, fsync, 1 thread": "huey, fsync",
                "litequeue, 1,000 waiting": "litequeue",
                "huey, no fsync, 1 thread": "huey, no fsync",
            },
        ),
    ),
    Chart(
        "drain-postgres",
        "drain",
        "Jobs drained by workers on PostgreSQL",
        "Holdfast's rate over that of each peer",
        "drained; the reference is the peer",
        _peers(
            "postgres",
            {
                "procrastinate, 20 at once": "procrastinate",
                "pgqueuer, batch 100": "pgqueuer",
                "pg-boss, 4 × 2,000": "pg-boss, 4 × 2,000",
                "graphile-worker, local queue 500": "graphile-worker, queue 500",
                "graphile-worker, local queue 4,000": "graphile-worker, queue 4,000",
            },
        ),
    ),
    Chart(
        "engines-sqlite",
        "engines",
        "Engine calls on SQLite, 100 jobs each",
        "Holdfast's rate over that of raw SQL",
        "full durability; the reference is raw SQL",
        _verbs("sqlite"),
    ),
    Chart(
        "engines-postgres",
        "engines",
        "Engine calls on PostgreSQL, 100 jobs each",
        "Holdfast's rate over that of raw SQL",
        "full durability; the reference is raw SQL",
        _verbs("postgres"),
    ),
    Chart(
        "single",
        "single",
        "Enqueueing one job in one call",
        "CPU time of raw SQL over that of the call, in the client",
        "CPU time of a call that enqueues one job",
        (
            Line("enqueue, SQLite", "sqlite", "task.enqueue"),
            Line("aenqueue, SQLite", "sqlite", "await task.aenqueue"),
            Line("enqueue, PostgreSQL", "postgres", "task.enqueue"),
            Line("aenqueue, PostgreSQL", "postgres", "await task.aenqueue"),
        ),
    ),
    Chart(
        "start",
        "start",
        "Starting a command or a worker, on SQLite",
        "The bound over the time taken",
        "",
        (
            Line("--help, CPU time", "sqlite", "--help"),
            Line("status, CPU time", "sqlite", "status"),
            Line("worker run to its first job", "sqlite", "worker run, a task"),
            Line("worker start to its first job", "sqlite", "worker start, a command"),
        ),
    ),
    Chart(
        "dashboard",
        "dashboard",
        "From an act until the overview shows it, p95",
        "The bound over the time taken, with 1,000,000 jobs",
        "from an act until a viewer sees it",
        tuple(
            Line(f"{shown}, {name}", engine, f"act of {actor}, on the page overview, p95")
            for engine, name in (("sqlite", "SQLite"), ("postgres", "PostgreSQL"))
            for actor, shown in (
                ("this server", "same server"),
                ("another process", "other process"),
            )
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Point:
    """A ratio, and the position of its run in the chart."""

    run: int
    ratio: float
    goal: float | None


@dataclass(frozen=True, slots=True)
class Plot:
    """The data of a chart: the runs that have any of its lines, and the points of each line."""

    chart: Chart
    runs: tuple[Run, ...]
    points: tuple[tuple[Point, ...], ...]

    def goal(self, line: int) -> float | None:
        """The goal of a line at its last run."""
        return self.points[line][-1].goal if self.points[line] else None


def draw_all(folder: Path = history.FOLDER) -> None:
    """Write all charts, and their tables into the page."""
    for plot in plots(folder):
        (folder / f"{plot.chart.name}.svg").write_text(svg(plot))
        record(folder / PAGE, plot.chart.name, markdown(plot))


def plots(folder: Path = history.FOLDER) -> list[Plot]:
    """Read the history of all charts."""
    runs = {bench: history.read(bench, folder) for bench in {chart.bench for chart in CHARTS}}
    return [plot_of(chart, runs[chart.bench]) for chart in CHARTS]


def plot_of(chart: Chart, runs: list[Run]) -> Plot:
    """Pick the data of a chart. A run without any of its lines is left out."""
    found = [(run, _rows(chart, run)) for run in runs]
    shown = [(run, rows) for run, rows in found if rows]
    points = tuple(
        tuple(Point(number, *rows[line]) for number, (_, rows) in enumerate(shown) if line in rows)
        for line in chart.lines
    )
    return Plot(chart, tuple(run for run, _ in shown), points)


def _rows(chart: Chart, run: Run) -> dict[Line, tuple[float, float | None]]:
    rows = {
        (row.engine, row.metric): (row.ratio, row.goal)
        for table in run.tables
        if chart.table in table.title
        for row in table.rows
        if row.ratio is not None
    }
    return {
        line: rows[line.engine, line.metric]
        for line in chart.lines
        if (line.engine, line.metric) in rows
    }


def markdown(plot: Plot) -> str:
    """The image of a chart, with its newest numbers as a table."""
    chart = plot.chart
    first = max(0, len(plot.runs) - COLUMNS_MAX)
    columns = [f"{run.date}<br>`{_code(run)}`" for run in plot.runs[first:]]
    lines = [
        f"![{chart.title}: {chart.subtitle}, by recorded run]({chart.name}.svg)",
        "",
        "| " + " | ".join(["ratio", *columns, "goal"]) + " |",
        "|---" + "|--:" * (len(columns) + 1) + "|",
    ]
    for number, line in enumerate(chart.lines):
        ratios = {point.run: _number(point.ratio) for point in plot.points[number]}
        goal = plot.goal(number)
        cells = [ratios.get(run, "") for run in range(first, len(plot.runs))]
        lines.append(
            "| " + " | ".join([line.label, *cells, "" if goal is None else f"{goal:g}"]) + " |"
        )
    return "\n".join(lines)


def svg(plot: Plot) -> str:
    """Draw a chart."""
    chart, scale = plot.chart, Scale.over(plot)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"',
        f'  viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="title description">',
        f'<title id="title">{escape(chart.title)}</title>',
        f'<desc id="description">{escape(description(plot))}</desc>',
        f"<style>\n{STYLE}\n</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>',
        _text(24, 34, chart.title, "title"),
        _text(24, 55, f"{chart.subtitle}. Higher is better; logarithmic scale."),
    ]
    if plot.runs:
        for layer in (_axes, _goal_lines, _lines, _labels):
            parts += layer(plot, scale)
    else:
        parts.append(_text(LEFT, (TOP + BOTTOM) / 2, "No run was recorded yet."))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def description(plot: Plot) -> str:
    """The chart in words: the first and the last ratio of each line, and its goal."""
    sentences = [f"{plot.chart.subtitle}, by recorded run ({len(plot.runs)})."]
    for number, line in enumerate(plot.chart.lines):
        if not (points := plot.points[number]):
            continue
        first, last = _number(points[0].ratio), _number(points[-1].ratio)
        course = last if len(points) == 1 else f"{first} at first, {last} at last"
        goal = plot.goal(number)
        sentences.append(f"{line.label}: {course}{'' if goal is None else f'; goal {goal:g}'}.")
    return " ".join(sentences)


@dataclass(frozen=True, slots=True)
class Scale:
    """Where runs and ratios lie in the chart."""

    runs: int
    low: float
    high: float

    @classmethod
    def over(cls, plot: Plot) -> Scale:
        """The scale with room for all ratios and goals."""
        goals = [goal for line in range(len(plot.points)) if (goal := plot.goal(line))]
        ratios = [point.ratio for points in plot.points for point in points]
        shown = [max(value, RATIO_MIN) for value in [*ratios, *goals]] or [1.0]
        low, high = min(shown), max(shown)
        stretch = max(1.0, math.sqrt(SPAN_MIN * low / high))
        margin = (high * stretch / low * stretch) ** 0.08
        return cls(len(plot.runs), low / stretch / margin, high * stretch * margin)

    def x(self, run: int) -> float:
        if self.runs == 1:
            return (LEFT + RIGHT) / 2
        return LEFT + INSET + run * (RIGHT - LEFT - 2 * INSET) / (self.runs - 1)

    def y(self, ratio: float) -> float:
        part = math.log(max(ratio, RATIO_MIN) / self.low) / math.log(self.high / self.low)
        return BOTTOM - part * (BOTTOM - TOP)

    def ticks(self) -> list[float]:
        """Round numbers inside the scale: four or more, if there are as many."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in TICKS:
            every = (digit * 10.0**decade for decade in decades for digit in digits)
            ticks = [tick for tick in every if self.low <= tick <= self.high]
            if len(ticks) >= 4:
                break
        return ticks

    def labelled_runs(self) -> Iterator[int]:
        """The last run, and as many before it as have room for their labels."""
        step = 1
        while self.runs > 1 and (self.x(step) - self.x(0)) < X_LABEL_WIDTH:
            step += 1
        yield from range(self.runs - 1, -1, -step)


def _axes(plot: Plot, scale: Scale) -> Iterator[str]:
    for tick in scale.ticks():
        y = scale.y(tick)
        yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}"/>'
        yield _text(LEFT - 8, y + 4, f"{tick:g}×", anchor="end")
    for run in scale.labelled_runs():
        x = scale.x(run)
        yield f'<line class="grid" x1="{x:.1f}" y1="{BOTTOM}" x2="{x:.1f}" y2="{BOTTOM + 6}"/>'
        yield _text(x, BOTTOM + 22, _code(plot.runs[run]), anchor="middle")
        yield _text(x, BOTTOM + 38, f"{plot.runs[run].date}", anchor="middle")
    yield f'<line class="grid" x1="{LEFT}" y1="{BOTTOM}" x2="{RIGHT}" y2="{BOTTOM}"/>'


def _goals(plot: Plot) -> list[tuple[float, str]]:
    """The goals and their CSS classes. Where they differ, a goal has the colour of its line."""
    lines: dict[float, list[int]] = {}
    for line in range(len(plot.points)):
        if (goal := plot.goal(line)) is not None:
            lines.setdefault(goal, []).append(line)
    return [
        (goal, f"c{having[0]}" if len(having) == 1 and len(lines) > 1 else "plain")
        for goal, having in lines.items()
    ]


def _goal_lines(plot: Plot, scale: Scale) -> Iterator[str]:
    for goal, colour in _goals(plot):
        y = scale.y(goal)
        yield (f'<line class="goal {colour}" x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}"/>')


def _lines(plot: Plot, scale: Scale) -> Iterator[str]:
    radius = 4.5 if len(plot.runs) <= 15 else 2.5
    for number, points in enumerate(plot.points):
        places = [(scale.x(point.run), scale.y(point.ratio)) for point in points]
        if len(places) > 1:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            yield f'<polyline class="line c{number}" points="{path}"/>'
        for x, y in places:
            yield f'<circle class="dot c{number}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>'


def _labels(plot: Plot, scale: Scale) -> Iterator[str]:
    """The last ratio and name of each line, and each goal, on the right of the plot."""
    labels = [(scale.y(goal), float(RIGHT), c, "goal ", f"{goal:g}") for goal, c in _goals(plot)]
    for number, points in enumerate(plot.points):
        if points:
            x, y = scale.x(points[-1].run), scale.y(points[-1].ratio)
            name = f"{plot.chart.lines[number].label} "
            labels.append((y, x + 8, f"c{number}", name, _number(points[-1].ratio)))
    labels.sort()
    places = apart([y for y, *_ in labels])
    for (y, x, colour, name, value), at in zip(labels, places, strict=True):
        yield (
            f'<line class="leader {colour}" x1="{x:.1f}" y1="{y:.1f}" x2="{RIGHT + 12}"'
            f' y2="{at:.1f}"/>'
        )
        yield (
            f'<text class="label {colour}" x="{RIGHT + 18}" y="{at + 4:.1f}">{escape(name)}'
            f'<tspan class="value">{value}</tspan></text>'
        )


def apart(places: list[float]) -> list[float]:
    """Move sorted places apart by LABEL_GAP inside the plot. Those that touch move as a group,
    which stays centred where its members were."""
    groups: list[list[float]] = []
    for number, place in enumerate(places):
        group = [place - number * LABEL_GAP]
        while groups and _mean(groups[-1]) > _mean(group):
            group = groups.pop() + group
        groups.append(group)
    last = BOTTOM - (len(places) - 1) * LABEL_GAP
    starts = [max(TOP, min(last, _mean(group))) for group in groups for _ in group]
    return [start + number * LABEL_GAP for number, start in enumerate(starts)]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    given = f' class="{style}"' if style else ""
    return f'<text{given} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _code(run: Run) -> str:
    """The version, and the commit; `+` marks one with changes."""
    if run.commit is None:
        return run.version
    return f"{run.version} {run.commit.hash[:7]}{'+' if run.commit.dirty else ''}"


def _number(ratio: float) -> str:
    return f"{ratio:,.2f}" if ratio < 10 else f"{ratio:,.1f}" if ratio < 100 else f"{ratio:,.0f}"


if __name__ == "__main__":
    try:
        draw_all()
    except history.HistoryError as error:
        sys.exit(f"bench.charts: {error}")
