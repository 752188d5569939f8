"""The results of benchmarks: sections of results, printed as a table, JSON or Markdown.

A higher ratio is always better; a goal is the smallest ratio wanted. This module measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

RECORD_START = "<!-- record: {name} -->"
RECORD_END = "<!-- end of record: {name} -->"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One measured value and the reference it is compared with, if any."""

    bench: str
    engine: str
    metric: str
    value: float
    unit: str
    reference: float | None = None
    ratio: float | None = None
    goal: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without a goal. A goal without a ratio counts as missed."""
        return None if self.goal is None else (self.ratio or 0.0) >= self.goal


@dataclass(slots=True)
class Section:
    """Results with the same kind of reference, which `title` names."""

    title: str
    results: list[Result] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """The results of one benchmark. A note is one line on what could not be measured, and why."""

    bench: str
    sections: list[Section] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def results(self) -> list[Result]:
        return [result for section in self.sections for result in section.results]

    @property
    def missed(self) -> list[Result]:
        return [result for result in self.results if result.met is False]

    def section(self, title: str) -> None:
        """Start a section; later results belong to it."""
        self.sections.append(Section(title))

    def rate(
        self,
        engine: str,
        metric: str,
        value: float,
        *,
        unit: str,
        reference: float | None = None,
        goal: float | None = None,
    ) -> None:
        """Add a value that is better when it is higher."""
        ratio = None if reference is None else _divide(value, reference)
        self._add(engine, metric, value, unit, reference, ratio, goal)

    def cost(
        self,
        engine: str,
        metric: str,
        value: float,
        *,
        unit: str,
        reference: float | None = None,
        goal: float | None = None,
    ) -> None:
        """Add a value that is better when it is lower: the ratio is reference over value."""
        ratio = None if reference is None else _divide(reference, value)
        self._add(engine, metric, value, unit, reference, ratio, goal)

    def _add(
        self,
        engine: str,
        metric: str,
        value: float,
        unit: str,
        reference: float | None,
        ratio: float | None,
        goal: float | None,
    ) -> None:
        result = Result(
            bench=self.bench,
            engine=engine,
            metric=metric,
            value=value,
            unit=unit,
            reference=reference,
            ratio=ratio,
            goal=goal,
        )
        self.sections[-1].results.append(result)


def write_json(path: Path, reports: list[Report]) -> None:
    """Write all results as a JSON list."""
    results = [result for report in reports for result in report.results]
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")


def print_table(report: Report, console: Console) -> None:
    """Print the sections as tables, then the notes."""
    for section in report.sections:
        table = Table(
            title=section.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD
        )
        for name in ("engine", "metric"):
            table.add_column(name, no_wrap=True)
        for name in ("value", "reference", "ratio", "goal"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("")
        for result in section.results:
            mark, style = {None: ("", ""), True: ("met", "green"), False: ("missed", "red")}[
                result.met
            ]
            table.add_row(*_cells(result), Text(mark, style=style))
        console.print(table)
    for note in report.notes:
        console.print(note, style="yellow", markup=False, highlight=False)


def to_markdown(report: Report) -> str:
    """Format the report as Markdown tables."""
    lines = []
    for section in report.sections:
        lines += [f"**{section.title}**", ""]
        lines += ["| engine | metric | value | reference | ratio | goal |"]
        lines += ["|---|---|--:|--:|--:|--:|"]
        lines += ["| " + " | ".join(_cells(result)) + " |" for result in section.results]
        lines += [""]
    lines += [f"- {note}" for note in report.notes]
    return "\n".join(lines)


def record(page: Path, name: str, text: str) -> None:
    """Replace the text between the markers of `name` in a page."""
    start, end = RECORD_START.format(name=name), RECORD_END.format(name=name)
    content = page.read_text()
    if content.count(start) != 1 or content.count(end) != 1:
        raise SystemExit(f"{page} must contain the lines {start} and {end} exactly once")
    before, _, rest = content.partition(start)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{start}\n{text.strip()}\n{end}{after}")


def _cells(result: Result) -> tuple[str, ...]:
    reference = "" if result.reference is None else _number(result.reference)
    ratio = "" if result.ratio is None else f"{result.ratio:,.2f}"
    goal = "" if result.goal is None else f"{result.goal:g}"
    value = f"{_number(result.value)} {result.unit}"
    return result.engine, result.metric, value, reference, ratio, goal


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _divide(numerator: float, denominator: float) -> float:
    """Divide; a value too small to measure still gives a finite ratio."""
    return round(max(numerator, 1e-6) / max(denominator, 1e-6), 3)
