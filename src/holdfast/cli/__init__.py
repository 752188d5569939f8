"""TYPE: the `holdfast` command, one module per noun. It prints, and decides nothing.

Exit codes: 0 done · 1 the engine could not · 2 the command line is wrong · 130 interrupted.
"""

from __future__ import annotations

import os
import sys

from holdfast.cli.pages import page


def main() -> None:
    """The entry point of the command."""
    try:
        code = run(sys.argv[1:])
        print(end="", flush=True)
    except OSError as error:
        # Whoever read the output has seen enough, or it cannot be written: nothing may be
        # flushed there again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"holdfast: {error}", file=sys.stderr)
        code = 1
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command line and give its exit code."""
    match arguments or ["--help"]:
        case [*command, "--help" | "-h"] if (text := page(command)) is not None:
            print(text, end="")
            return 0
        case ["--version"]:
            from holdfast import __version__

            print(f"holdfast {__version__}")
            return 0
        case _:
            from holdfast.cli.root import dispatch

            return dispatch(arguments)
