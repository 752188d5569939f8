"""The history of recorded benchmarks: one file per benchmark below docs/benchmarks, a run per line.

A file may have been edited or merged by hand, so every line is checked when it is read.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from bench.processes import ROOT
from bench.report import Report
from holdfast import __version__

FOLDER = ROOT / "docs" / "benchmarks"
RUNS_MAX = 40
"""Runs kept for each benchmark. The oldest are removed."""
BYTES_MAX = 8 * 2**20
COMMIT_DIGITS = 10
"""Fixed, because the short hashes of git grow with the repository."""

Text = Annotated[str, Meta(min_length=1, max_length=300, pattern=r"\A[^\x00-\x1f\x7f]+\Z")]
Version = Annotated[str, Meta(max_length=40, pattern=r"\A[0-9][0-9A-Za-z.+!-]*\Z")]
Hash = Annotated[str, Meta(pattern=r"\A[0-9a-f]{7,40}\Z")]
Ratio = Annotated[float, Meta(ge=0)]
Goal = Annotated[float, Meta(gt=0)]


class HistoryError(Exception):
    """A history cannot be read or written. The text names the file and the line."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a line. A misspelt field is an error."""


class Row(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """One result, as in `bench.report`."""

    engine: Text
    metric: Text
    value: float
    unit: Text
    reference: float | None = None
    ratio: Ratio | None = None
    goal: Goal | None = None


class Table(_Part, frozen=True, kw_only=True):
    """The rows of one section of a report."""

    title: Text
    rows: tuple[Row, ...]


class Commit(_Part, frozen=True, kw_only=True):
    """The commit of the measured code.

    `dirty` is whether files outside docs/ had uncommitted changes. It is None for runs taken from
    former versions of docs/benchmarks.md: their commit is the one that recorded the run.
    """

    hash: Hash
    dirty: bool | None


class Run(_Part, frozen=True, kw_only=True):
    """One recorded run. `load` is the load average over 15 minutes."""

    bench: Text
    command: Text
    version: Version
    commit: Commit | None
    date: dt.date
    system: Text
    cpus: Annotated[int, Meta(ge=1)]
    python: Version
    load: Annotated[float, Meta(ge=0)]
    tables: tuple[Table, ...]

    @property
    def key(self) -> tuple[str, str]:
        """A later run with the same key replaces this one."""
        return (self.commit.hash if self.commit else self.version, self.command)

    @property
    def machine(self) -> str:
        """The machine in general words, and its load."""
        system = f"{self.system}, {self.cpus} CPUs, Python {self.python}"
        return f"{system}, load {self.load:.1f} over 15 minutes"


_DECODER = msgspec.json.Decoder(Run)


def run_of(report: Report, command: str, commit: Commit | None) -> Run:
    """The run of a report, measured now on this machine."""
    return Run(
        bench=report.bench,
        command=command,
        version=__version__,
        commit=commit,
        date=dt.datetime.now(dt.UTC).date(),
        system=f"{platform.system()} {platform.machine()}",
        cpus=os.cpu_count() or 1,
        python=platform.python_version(),
        load=round(os.getloadavg()[2], 1),
        tables=tuple(
            Table(
                title=section.title,
                rows=tuple(
                    Row(
                        engine=result.engine,
                        metric=result.metric,
                        value=_rounded(result.value),
                        unit=result.unit,
                        reference=None if result.reference is None else _rounded(result.reference),
                        ratio=result.ratio,
                        goal=result.goal,
                    )
                    for result in section.results
                ),
            )
            for section in report.sections
        ),
    )


def current_commit(root: Path = ROOT) -> Commit | None:
    """The commit that is checked out; None if `root` is not a git checkout of its own."""
    top = _git(root, "rev-parse", "--show-toplevel")
    head = _git(root, "rev-parse", "HEAD")
    # `--record` itself changes docs/.
    changes = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    if not top or not head or changes is None or Path(top).resolve() != root.resolve():
        return None
    return Commit(hash=head[:COMMIT_DIGITS], dirty=bool(changes))


def path_of(bench: str, folder: Path = FOLDER) -> Path:
    """The file that has the history of a benchmark."""
    return folder / f"{bench}.jsonl"


def read(bench: str, folder: Path = FOLDER) -> list[Run]:
    """Return the recorded runs of a benchmark, oldest first; none if there is no file."""
    path = path_of(bench, folder)
    try:
        size = path.stat().st_size
        if size > BYTES_MAX:
            raise HistoryError(f"{_shown(path)}: {size:,} bytes, expected at most {BYTES_MAX:,}")
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HistoryError(f"{_shown(path)}: {error.strerror}") from error
    runs: list[Run] = []
    lines: dict[tuple[str, str], int] = {}
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{_shown(path)}, line {number}"
        run = _decoded(line, where)
        if run.bench != bench:
            raise HistoryError(f'{where}: expected a run of "{bench}", not of "{run.bench}"')
        if (first := lines.setdefault(run.key, number)) != number:
            raise HistoryError(
                f"{where}: repeats the commit and command of line {first}; remove one of them"
            )
        runs.append(run)
    return runs


def add(run: Run, folder: Path = FOLDER) -> None:
    """Append a run, replacing an earlier one of the same commit and command."""
    path = path_of(run.bench, folder)
    kept = [each for each in read(run.bench, folder) if each.key != run.key]
    lines = [msgspec.json.encode(each) for each in [*kept, run][-RUNS_MAX:]]
    _decoded(lines[-1], f"the new line of {_shown(path)}")
    folder.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.write_bytes(b"".join(line + b"\n" for line in lines))
    draft.replace(path)


def _decoded(line: bytes, where: str) -> Run:
    try:
        return _DECODER.decode(line)
    except ValueError as error:
        raise HistoryError(f"{where}: {error}") from error


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *arguments]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return run.stdout.strip() if run.returncode == 0 else None


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
