"""Output at a terminal, and questions that are asked there."""

import io
import logging
import os
import pty
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from holdfast.cli import flags, output
from holdfast.cli.output import Declined, print_table, show_age
from holdfast.core.text import printable
from holdfast.errors import UsageError
from holdfast.process import PrintableFormatter
from tests.cli.program import command, environment

HOSTILE = "\x1b[31m\x07\r\x9b2J\u202e\u2028\x00[bold]red[/bold]"


def test_invisible_characters_are_escaped() -> None:
    assert printable("a\x1b[0m\nb\tc\r\ud800é漢") == "a\\x1b[0m\nb\tc\\r\\ud800é漢"
    assert printable("a\nb", one_line=True) == "a\\nb"


def test_log_lines_are_printable_too() -> None:
    record = logging.LogRecord("holdfast", logging.WARNING, "", 0, "odd %s", (HOSTILE,), None)
    assert all(char.isprintable() for char in PrintableFormatter("%(message)s").format(record))


def test_a_text_in_a_log_line_cannot_forge_another_line() -> None:
    text = "x\nholdfast: job j1 is done\r\nand more"
    record = logging.LogRecord("holdfast", logging.WARNING, "", 0, "odd %s", (text,), None)
    shown = PrintableFormatter("holdfast: %(message)s").format(record)
    assert shown == "holdfast: odd x\\nholdfast: job j1 is done\\r\\nand more"


def test_a_traceback_in_the_log_keeps_its_lines() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        1 // 0  # noqa: B018
    error = (caught.type, caught.value, caught.tb)
    record = logging.LogRecord("holdfast", logging.ERROR, "", 0, "it", (), error)
    lines = PrintableFormatter("%(message)s").format(record).splitlines()
    assert lines[:2] == ["it", "Traceback (most recent call last):"]


def test_a_table_keeps_hostile_text_and_wide_rows(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("id", "n"), [("x" * 300, 5), (HOSTILE, 70)])
    out = capsys.readouterr().out
    assert "x" * 300 in out, "not folded where no terminal bounds it"
    assert "[bold]red[/bold]" in out
    assert all(char.isprintable() for char in out.replace("\n", ""))


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, ""),
        (-5, "0ms"),
        (840, "840ms"),
        (12_500, "12.5s"),
        (200_000, "3m 20s"),
        (18_420_000, "5h 7m"),
        (12 * 86_400_000 + 3 * 3_600_000, "12d 3h"),
    ],
)
def test_ages(ms: int | None, text: str) -> None:
    assert show_age(ms) == text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_yes_confirms(
    answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    flags.confirm("Delete \x1b all?", yes=False)
    assert capsys.readouterr() == ("", "Delete \\x1b all? [y/N] ")


@pytest.mark.parametrize("answer", ["n\n", "\n", "", "yesterday\n"])
def test_anything_but_yes_declines(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    with pytest.raises(Declined):
        flags.confirm("Delete all?", yes=False)


def test_without_a_terminal_yes_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError, match="--yes"):
        flags.confirm("Delete all?", yes=False)
    flags.confirm("Delete all?", yes=True)


def test_no_progress_bar_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("counting", 3) as advance:
        advance(3)
    assert capsys.readouterr() == ("", "")


def test_a_progress_bar_goes_to_the_terminal_and_results_to_stdout(tmp_path: Path) -> None:
    main, terminal = pty.openpty()
    with subprocess.Popen(
        command("enqueue", "-"),
        cwd=tmp_path,
        env=environment(TERM="xterm", COLUMNS="80"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=terminal,
    ) as process:
        os.close(terminal)
        out, _ = process.communicate(b'{"task": "t"}\n' * 3000)
    seen = b""
    try:
        while part := os.read(main, 65536):
            seen += part
    except OSError:
        pass  # The other end is closed, which is how a terminal ends.
    os.close(main)
    assert out.startswith(b"3,000 jobs enqueued")
    assert b"enqueueing" in seen


def be_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a fixture: each phase of a test has its own standard output."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")


def drawn(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines without the codes for bold text, but with the spaces at their ends."""
    return re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out).splitlines()


JOB = ("0195c8a2-7a77-7e21-a0b3-8711ef6e2049", "default", "x" * 50, "failed, due in 59m 42s", 3, 0)


def test_a_table_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_a_terminal(monkeypatch)
    columns = ("id", "queue", "task", "state", "attempt", "priority", "worker")
    print_table(columns, [(*JOB, "host-1")] * 2, less=("worker", "queue"))
    head, *lines = drawn(capsys)
    assert head.split() == ["id", "task", "state", "attempt"], "priority is 0 everywhere"
    assert len(lines) == 2, "nothing is wrapped"
    for line in lines:
        id_, task, *state, attempt = line.split()
        assert (id_, attempt) == (JOB[0], "3")
        assert re.fullmatch("x+…", task)
        assert " ".join(state).startswith("failed, due")
        assert len(line) <= 80


def test_prose_is_wrapped_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_a_terminal(monkeypatch)
    text = "How long a worker keeps a job without renewing its lease, unless the job says so."
    print_table(("name", "text"), [("a" * 40, f"{text} {'y' * 50}")], prose=("text",))
    lines = drawn(capsys)
    assert max(map(len, lines)) <= 80
    shown = " ".join(line[42:].strip() for line in lines[1:])
    assert shown.startswith(text), "no word is torn"
    assert re.fullmatch("y+…", shown.split()[-1])


def test_a_time_is_shown_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_a_terminal(monkeypatch)
    columns = ("schedule", "rule", "next", "UTC", "job")
    times = ("Thu 2026-11-19 02:00 CET", "2026-11-19T01:00:00Z")
    row = ("nightly", "At 02:00 every day (Europe/Berlin)", *times, "shop:report")
    print_table(columns, [row], less=("job",), whole=("next", "UTC"))
    _, line = drawn(capsys)
    assert all(time in line for time in times)
    print_table(columns, [("n" * 40, *row[1:])], less=("job",), whole=("next", "UTC"))
    head, line = drawn(capsys)
    assert times[0] in line
    assert "UTC" not in head


@pytest.mark.parametrize("length", [5, 79, 80, 200])
def test_the_name_of_a_row_is_never_cut(
    length: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_a_terminal(monkeypatch)
    name = "n" * length
    print_table(("name", "text", "count"), [(name, "some words", 12345)])
    lines = drawn(capsys)
    assert lines[1].split()[0] == name
    assert len(lines) == 2
    assert max(map(len, lines)) <= max(80, length)


@given(
    st.lists(
        st.lists(st.text("ab é漢", max_size=60) | st.integers(0, 10**12), min_size=5, max_size=5),
        max_size=4,
    ),
    st.integers(20, 120),
)
def test_no_table_is_wider_than_the_terminal(rows: list[list[Any]], width: int) -> None:
    columns = ("id", "one", "two", "three", "four")
    sizes = [
        output._ColumnSize(
            name,
            max([len(name), *(cell_len(str(row[at])) for row in rows)]),
            bool(rows) and all(isinstance(row[at], int) for row in rows),
            not any(row[at] for row in rows),
        )
        for at, name in enumerate(columns)
    ]
    widths = output._fitting_widths(sizes, width, ("two",))
    taken = sum(widths.values()) + 2 * (len(widths) - 1)
    assert 0 in widths
    assert taken <= max(width, sizes[0].widest)
    assert all(widths[at] <= sizes[at].widest for at in widths)
