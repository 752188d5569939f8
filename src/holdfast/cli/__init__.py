"""TYPE: the `holdfast` command, one module per noun. It prints, and decides nothing.

Exit codes: 0 done · 1 the engine could not, or not all was done · 2 the command line is wrong ·
3 no such job, queue, … · 4 the job waited for ended dead or cancelled · 5 it did not end in time ·
130 interrupted. `docs/cli.md` says more.
"""

from __future__ import annotations

import os
import sys

from holdfast.cli.pages import asked, program


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
            print(f"{program()}: {error}", file=sys.stderr)
        code = 1
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command line and give its exit code."""
    arguments = arguments or ["--help"]
    help_text = asked(arguments)
    if help_text is not None:
        print(help_text, end="")
        return 0
    if arguments == ["--version"]:
        from holdfast import __version__

        print(f"holdfast {__version__}")
        return 0
    from holdfast.cli.root import dispatch

    return dispatch(arguments)
