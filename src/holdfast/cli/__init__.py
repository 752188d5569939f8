"""TYPE: the `holdfast` command, one module per noun. It prints, and decides nothing.

Exit codes: 0 done · 1 the engine failed, or part of the work was not done · 2 the command line is
wrong · 3 no such job, queue, … · 4 the awaited job ended dead or cancelled · 5 it did not end in
time · 130 interrupted. See `docs/cli.md`.
"""

from __future__ import annotations

import os
import sys

from holdfast.cli.help_pages import program, requested_page


def main() -> None:
    """The entry point of the command."""
    try:
        code = run(sys.argv[1:])
        print(end="", flush=True)
    except OSError as error:
        # The output is closed or full: Python must not flush it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"{program()}: {error}", file=sys.stderr)
        code = 1
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    arguments = arguments or ["--help"]
    help_text = requested_page(arguments)
    if help_text is not None:
        print(help_text, end="")
        return 0
    if arguments == ["--version"]:
        from holdfast import __version__

        print(f"holdfast {__version__}")
        return 0
    if arguments[:1] == ["--complete"] and len(arguments) == 2:
        from holdfast.cli.terminal.completion import print_values

        print_values(arguments[1])
        return 0
    if arguments[:1] == ["up"] or arguments[:2] in (["worker", "start"], ["worker", "run"]):
        return _run_worker(arguments)
    from holdfast.cli.root import dispatch

    return dispatch(arguments)


def _run_worker(arguments: list[str]) -> int:
    """Run a command that starts workers. The first of them loads its modules while this process
    loads the parser and reads the flags."""
    from holdfast.worker.managed_process import end_ahead, start_ahead

    named = any(word.partition("=")[0] == "--app" for word in arguments)
    start_ahead(template=named or arguments[1:2] == ["run"])
    try:
        from holdfast.cli.root import dispatch

        return dispatch(arguments)
    finally:
        end_ahead()
