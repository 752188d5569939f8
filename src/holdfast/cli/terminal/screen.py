"""Colour and paging: only at a terminal, and as the usual environment variables say."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

PAGER_VARIABLE = "HOLDFAST_PAGER"
NO_PAGER = "cat"
_PAGER = "less -FRX"


def has_colour(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """NO_COLOR switches colour off, FORCE_COLOR on; else it needs a terminal that is not dumb."""
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR", "0") != "0":
        return True
    return can_draw(stream, environment)


def can_draw(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """True if the stream is a terminal that understands control sequences."""
    return stream.isatty() and environment.get("TERM", "") not in ("", "dumb")


def make_console(stream: TextIO) -> Console:
    """A console that writes control sequences only if the stream may have them."""
    from rich.console import Console

    coloured = has_colour(stream)
    return Console(
        file=stream,
        highlight=False,
        force_terminal=coloured or can_draw(stream),
        color_system="auto" if coloured else None,
        no_color=not coloured,
        legacy_windows=False,
    )


def print_paged(text: str) -> None:
    """Print a text. If it is longer than the terminal, a pager shows it: HOLDFAST_PAGER, else
    PAGER, else less. It quits when it has shown everything, and an empty variable or `cat` prints
    instead."""
    command = _pager(os.environ) if _is_longer_than_screen(text) else []
    if not command or not _run_pager(command, text):
        print(text)


def _is_longer_than_screen(text: str) -> bool:
    if not (sys.stdin.isatty() and can_draw(sys.stdout)):
        return False
    return text.count("\n") + 2 > shutil.get_terminal_size().lines


def _pager(environment: Mapping[str, str]) -> list[str]:
    """The command that shows long output; empty to print it."""
    given = environment.get(PAGER_VARIABLE, environment.get("PAGER") or _PAGER)
    try:
        command = shlex.split(given)
    except ValueError:
        return []
    return [] if command in ([], [NO_PAGER]) else command


def _run_pager(command: list[str], text: str) -> bool:
    """Show the text with the pager until it ends; False if it cannot be started."""
    sys.stdout.flush()
    # As git does: keep colours, leave the text on the screen, quit if it fits.
    environment = {"LESS": "FRX", **os.environ}
    try:
        # The person's own choice of a program.
        pager = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)  # noqa: S603
    except OSError:
        return False
    # Ctrl-C is for the pager.
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main else None
    try:
        # It may end before it has read everything.
        pager.communicate(text.encode(errors="backslashreplace") + b"\n")
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
    return True
