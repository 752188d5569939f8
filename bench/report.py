"""The one format of every benchmark: results in sections, as a table, as JSON, as Markdown.

A ratio is always "higher is better"; a goal is the least ratio wanted. It measures nothing.
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
    """One number beside what it is compared with; None where there is nothing to compare with."""

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
        """None without a goal. A goal without a ratio is a mistake, so it counts as missed."""
        return None if self.goal is None else (self.ratio or 0.0) >= self.goal


@dataclass(slots=True)
class Section:
    """Results that share what their references are, which `title` says."""

    title: str
    results: list[Result] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """What one benchmark found out about the engines it was asked for. A note says in one line what
    could not be measured, and why."""

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
        """More is better."""
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
        """Less is better, so the ratio is the reference over the value."""
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
    results = [result for report in reports for result in report.results]
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")


def print_table(report: Report, console: Console) -> None:
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
    """Replace what stands between the markers of `name`; the rest of the page stays as it is."""
    start, end = RECORD_START.format(name=name), RECORD_END.format(name=name)
    whole = page.read_text()
    if whole.count(start) != 1 or whole.count(end) != 1:
        raise SystemExit(f"{page} needs the lines {start} and {end} once each, to record between")
    before, _, rest = whole.partition(start)
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


def _divide(part: float, whole: float) -> float:
    """A cost too small to be seen still gives a finite ratio."""
    return round(max(part, 1e-6) / max(whole, 1e-6), 3)
