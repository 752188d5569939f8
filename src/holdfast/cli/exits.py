"""How a command ends: the exit codes, and the errors that only the command line knows."""

from __future__ import annotations

from enum import IntEnum

from holdfast.errors import HoldfastError, NotFound, UnknownQueue, UsageError

__all__ = ["Declined", "Exit", "NotFound", "exit_for"]


class Exit(IntEnum):
    """What a script can rely on; `docs/cli.md` has the same table."""

    DONE = 0
    FAILED = 1
    """The engine could not, or part of what was asked for was not done."""
    USAGE = 2
    """The command line, a value or a setting is wrong; nothing was changed."""
    NOT_FOUND = 3
    """No such job, queue, worker, schedule or setting."""
    UNDONE = 4
    """The job that was waited for ended dead or cancelled."""
    WAITING = 5
    """The job that was waited for had not ended in time; it goes on."""
    INTERRUPTED = 130
    """Ctrl-C."""


class Declined(HoldfastError):
    """The person who was asked did not say yes: nothing was changed."""

    code = "declined"


def exit_for(error: HoldfastError) -> Exit:
    match error:
        case NotFound() | UnknownQueue():
            return Exit.NOT_FOUND
        case UsageError():
            return Exit.USAGE
        case _:
            return Exit.FAILED
