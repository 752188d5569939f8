"""Colour, paging and keys: only at a terminal."""

import contextlib
import io
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from holdfast.cli import output
from holdfast.cli.output import print_table, show_percent
from holdfast.cli.root import without_pager_flag
from holdfast.cli.terminal import screen
from holdfast.cli.terminal.screen import has_colour
from tests.cli.program import CODE, environment, run_program

OWN_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "at_terminal", "elsewhere"),
    [
        ({"TERM": "xterm"}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({}, False, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, True, True),
        ({"TERM": "xterm", "FORCE_COLOR": "0"}, True, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_where_there_is_colour(
    variables: dict[str, str], at_terminal: bool, elsewhere: bool
) -> None:
    assert has_colour(Terminal(), variables) is at_terminal
    assert has_colour(io.StringIO(), variables) is elsewhere


ROWS = [("w1", "healthy"), ("w2", "unhealthy")]


@pytest.mark.parametrize(
    ("variables", "codes"), [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)]
)
def test_a_table_has_control_codes_only_where_they_are_wanted(
    variables: dict[str, str], codes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    print_table(("worker", "health"), ROWS)
    assert ("\x1b[31munhealthy\x1b[0m" in stream.getvalue()) is codes
    assert ("\x1b" in stream.getvalue()) is codes


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(None, ""), (0, "0 %"), (0.29, "29 %"), (0.93, "93 %"), (0.999, "99 %"), (1.0, "100 %")],
)
def test_progress_in_percent(fraction: float | None, text: str) -> None:
    assert show_percent(fraction) == text


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file that the pager writes, for a terminal of ten lines."""
    file = tmp_path / "pages"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("LINES", "10")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("PAGER", raising=False)
    monkeypatch.setenv("HOLDFAST_PAGER", f"tee {file}")
    return file


def lines(count: int) -> str:
    return "\n".join(f"line {number}" for number in range(count))


def at_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Not a fixture: each phase of a test has its own standard output."""
    stream = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stdout", stream)
    return stream


def test_a_text_that_is_longer_than_the_screen_goes_to_the_pager(
    pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = at_terminal(monkeypatch)
    screen.print_paged(lines(9))
    assert pages.exists() is False
    assert stream.getvalue() == lines(9) + "\n"
    screen.print_paged(lines(10))
    assert pages.read_text() == lines(10) + "\n"
    assert stream.getvalue() == lines(9) + "\n"


def test_a_long_table_goes_to_the_pager(pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_terminal(monkeypatch)
    output.print_table(("n",), [(number,) for number in range(30)])
    assert pages.read_text().splitlines()[-1].strip() == "29"


@pytest.mark.parametrize("pager", ["", "cat", "'", "/no/such/pager"])
def test_without_a_pager_everything_is_printed(
    pages: Path, pager: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_PAGER", pager)
    stream = at_terminal(monkeypatch)
    screen.print_paged(lines(50))
    assert stream.getvalue() == lines(50) + "\n"


def test_a_pager_that_quits_early_is_no_error(pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setenv("HOLDFAST_PAGER", "true")
    stream = at_terminal(monkeypatch)
    screen.print_paged(lines(100_000))
    assert stream.getvalue() == ""
    assert signal.getsignal(signal.SIGINT) is before


def test_the_pager_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    assert screen._pager({}) == ["less", "-FRX"]
    assert screen._pager({"PAGER": ""}) == ["less", "-FRX"]
    assert screen._pager({"PAGER": "more -s"}) == ["more", "-s"]
    assert screen._pager({"PAGER": "more", "HOLDFAST_PAGER": "most"}) == ["most"]
    assert screen._pager({"PAGER": "more", "HOLDFAST_PAGER": ""}) == []


def test_no_pager_may_stand_anywhere(pages: Path) -> None:
    assert without_pager_flag(["--no-pager", "job", "list"]) == ["job", "list"]
    assert os.environ["HOLDFAST_PAGER"] == "cat"
    assert without_pager_flag(["list", "--no-pager", "--url", "x"]) == ["list", "--url", "x"]
    line = ["enqueue", "--", "less", "--no-pager"]
    assert without_pager_flag(line) == line


def test_nothing_is_paged_into_a_pipe(pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_terminal(monkeypatch)
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stdout", pipe)
    screen.print_paged(lines(50))
    assert pipe.getvalue() == lines(50) + "\n"
    assert not pages.exists()


@pytest.mark.parametrize("how", ["q", "SIGTERM"])
def test_top_leaves_the_terminal_as_it_was(tmp_path: Path, how: str) -> None:
    assert run_program(tmp_path, "queue", "create", "mail").code == 0
    line = ["top", "--interval", "30s"]
    main, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)

    with subprocess.Popen(
        [sys.executable, "-c", OWN_TERMINAL + CODE.format(name="holdfast"), *line],
        cwd=tmp_path,
        env=environment(TERM="xterm", LINES="24", COLUMNS="80"),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    ) as top:
        seen = read_until(main, b"q quits")
        if how == "q":
            # Without Enter, and without waiting for the next refresh.
            os.write(main, b"?")
            seen += read_until(main, b"hides this")
            os.write(main, b"q")
        else:
            top.send_signal(signal.SIGTERM)
        seen += read_until(main, b"\x1b[?1049l")
        assert top.wait(30) == 0
    assert termios.tcgetattr(terminal) == before
    os.close(terminal)
    os.close(main)
    assert b"mail" in seen
    assert seen.count(b"\x1b[?1049h") == 1, "it draws on the alternate screen"
    assert seen.rindex(b"\x1b[?25h") > seen.rindex(b"\x1b[?25l"), "the cursor is visible again"


def read_until(descriptor: int, text: bytes) -> bytes:
    """Everything that the terminal shows up to this text."""
    seen = b""
    with contextlib.suppress(OSError):
        while text not in seen:
            seen += os.read(descriptor, 65536)
    assert text in seen, seen
    return seen
