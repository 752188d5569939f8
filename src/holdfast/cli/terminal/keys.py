"""Single keys from the terminal, without Enter, while an event loop runs."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_READ_MAX = 64


@contextmanager
def read_keys(act: Callable[[str], None]) -> Iterator[bool]:
    """Call `act` with each key while the block runs; yields whether there are keys to read.

    The terminal is set back however the block ends. It stays as it is if standard input is not a
    terminal, or belongs to another program in the foreground. Ctrl-C still interrupts.
    """
    descriptor = _own_terminal()
    if descriptor is None:
        yield False
        return
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        with suppress(BlockingIOError):
            data = os.read(descriptor, _READ_MAX)
            if not data:
                # The terminal is gone.
                loop.remove_reader(descriptor)
            # An arrow or function key is one sequence that begins with Escape.
            for key in "" if data.startswith(b"\x1b") else data.decode(errors="ignore"):
                act(key)

    tty.setcbreak(descriptor, termios.TCSANOW)
    try:
        loop.add_reader(descriptor, read)
        yield True
    finally:
        loop.remove_reader(descriptor)
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _own_terminal() -> int | None:
    """The descriptor of standard input, if it is a terminal that this process may read."""
    try:
        descriptor = sys.stdin.fileno()
        if os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp():
            return descriptor
    except (OSError, ValueError, AttributeError):
        pass
    return None
