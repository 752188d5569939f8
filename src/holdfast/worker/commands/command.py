"""One command job: its payload → the program to start, and its exit status → an ending.

A list is an argument vector and never reaches a shell. A string is for a shell, and runs only if
the worker allows it.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.core.model import Failure, FailureKind
from holdfast.tracing import outgoing_headers
from holdfast.worker.child.attempt import plain_failure
from holdfast.worker.child.context import BoundedOutput
from holdfast.worker.wire import AskedRelease, CallJob, ChildSetup, Ending, Raised, Returned

_SCARCE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_SCARCE_DELAY_MS = 1_000
_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
"""A command starts with default handlers for all of them, whatever this process ignores."""


class CommandSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a command job."""

    command: str | list[str]
    cwd: str | None = None
    env: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class CommandPlan:
    """Program, folder and environment of a command."""

    arguments: list[str]
    cwd: str | None
    environment: dict[str, str]


class CommandRefused(Exception):
    """The command cannot be started; its job ends with `ending`."""

    def __init__(self, ending: Ending) -> None:
        super().__init__()
        self.ending = ending


def inherited(setup: ChildSetup) -> dict[str, str]:
    """The variables of this process that every command inherits."""
    return {name: os.environ[name] for name in setup.environment if name in os.environ}


def plan(job: CallJob, setup: ChildSetup, inherited: dict[str, str]) -> CommandPlan:
    """Plan the command of this job; raises CommandRefused."""
    try:
        payload = msgspec.json.decode(job.payload, type=CommandSpec)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise _fatal(
            "InvalidCommand",
            f"the payload is not a command: {error}; it should be"
            ' {"command": ["program", "argument"]}, optionally with "cwd" and "env"',
        ) from None
    if isinstance(payload.command, str):
        arguments = _by_shell(payload.command, setup)
    else:
        arguments = payload.command
    if not arguments:
        raise _fatal("InvalidCommand", "the command is an empty list: name a program")
    environment = {**inherited, **_trace(job), **payload.env, **_marks(job, setup)}
    return CommandPlan(arguments, _folder(payload.cwd, setup.cwd), environment)


def marker(job: CallJob) -> tuple[bytes, bytes]:
    """The marker that identifies the processes of this attempt: see `_marks`."""
    return job.id.encode(), str(job.token).encode()


def start(planned: CommandPlan, stdin: int, sink: int) -> int:
    """Start it; returns the process id, which is also that of its session and group. All other
    descriptors are closed in the new process automatically. Raises CommandRefused.
    """
    if planned.cwd is None:
        return _spawn(planned, stdin, sink)
    with _inside(planned.cwd):
        return _spawn(planned, stdin, sink)


def scarce(error: OSError) -> CommandRefused:
    """The machine cannot start one more process now, through no fault of the job."""
    text = f"the machine could not start it: {error.strerror}"
    return CommandRefused(AskedRelease(text, _SCARCE_DELAY_MS))


def ending(status: int, output: BoundedOutput, duration_ms: int) -> Ending:
    """The ending of a command by its exit code; a negative one is a signal."""
    if status == 0:
        return Returned(msgspec.json.encode({"exit_code": 0, "duration_ms": duration_ms}))
    if status < 0:
        name = _signal_name(-status)
        return Raised(Failure(type=name, message=f"killed by {name}", signal=-status))
    line = output.last_line()
    text = f"exit code {status}" + (f": {line}" if line else "")
    return Raised(Failure(type="ExitCode", message=text, exit_code=status))


def timed_out(timeout_ms: int) -> Ending:
    """The ending of a command that reached its timeout."""
    text = f"it ran longer than its timeout of {timeout_ms / 1000:g} s"
    return Raised(Failure(kind=FailureKind.TIMEOUT, type="AttemptTimeout", message=text))


def _spawn(planned: CommandPlan, stdin: int, sink: int) -> int:
    try:
        return os.posix_spawn(
            _find(planned),
            planned.arguments,
            planned.environment,
            file_actions=(
                (os.POSIX_SPAWN_DUP2, stdin, 0),
                (os.POSIX_SPAWN_DUP2, sink, 1),
                (os.POSIX_SPAWN_DUP2, sink, 2),
            ),
            setsid=True,
            setsigmask=(),
            setsigdef=_SIGNALS,
        )
    except OSError as error:
        raise CommandRefused(_unstarted(error, planned)) from None
    except ValueError as error:
        # A NUL in an argument, a "=" in the name of a variable, a lone surrogate.
        raise _fatal("InvalidCommand", f"the command cannot be started: {error}") from None


@contextmanager
def _inside(folder: str) -> Iterator[None]:
    """Change to the folder for a moment: this process has only one thread."""
    try:
        home = os.open(".", os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        raise scarce(error) from None
    try:
        try:
            os.chdir(folder)
        except OSError as error:
            text = f"cannot change to the folder {folder!r}: {error.strerror}"
            raise CommandRefused(Raised(plain_failure("FolderError", text))) from None
        except ValueError as error:
            raise _fatal("InvalidCommand", f"the folder {folder!r}: {error}") from None
        yield
    finally:
        os.fchdir(home)
        os.close(home)


def _find(planned: CommandPlan) -> str:
    """The path of the program, by the PATH of its own environment."""
    program = planned.arguments[0]
    if "/" in program:
        return program
    for folder in planned.environment.get("PATH", os.defpath).split(":"):
        path = f"{folder or '.'}/{program}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):  # noqa: PTH112 (much faster)
            return path
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)


def _by_shell(command: str, setup: ChildSetup) -> list[str]:
    if not setup.shell:
        raise _fatal(
            "ShellRefused",
            "a command in one string needs a shell, which is off for this worker (--no-shell, or"
            " the setting worker-shell): switch it on, or give the command as a list, such as"
            ' ["echo", "hello"]',
        )
    return ["/bin/sh", "-c", command]


def _folder(wanted: str | None, default: str | None) -> str | None:
    if wanted is None:
        return default
    return str(Path(default or ".") / wanted)


def _marks(job: CallJob, setup: ChildSetup) -> dict[str, str]:
    return {
        "HOLDFAST_JOB_ID": job.id,
        "HOLDFAST_ATTEMPT": str(job.attempt),
        "HOLDFAST_LEASE_TOKEN": str(job.token),
        "HOLDFAST_QUEUE": job.queue,
        "HOLDFAST_WORKER": setup.worker,
        "HOLDFAST_WORKER_ID": setup.worker_id,
    }


def _trace(job: CallJob) -> dict[str, str]:
    """For programs that continue the job's trace."""
    return {name.upper(): value for name, value in outgoing_headers(job.headers).items()}


def _unstarted(error: OSError, planned: CommandPlan) -> Ending:
    program = planned.arguments[0]
    if error.errno in _SCARCE:
        return scarce(error).ending
    if error.errno == errno.E2BIG:
        text = "the arguments and the environment are too long for the system: use a file"
        return Raised(plain_failure("InvalidCommand", text), fatal=True)
    if error.errno == errno.ENOENT:
        text = f"command not found: {program!r}"
        if "/" in program and Path(program).exists():
            text = f"{program!r} names an interpreter in its first line that does not exist"
        return _not_run("CommandNotFound", text, 127)
    if error.errno == errno.ENOEXEC:
        text = f"{program!r} is not a program, and its first line does not name an interpreter"
        return _not_run("NotExecutable", text, 126)
    text = f"{program!r} cannot be run: {error.strerror}"
    return _not_run("NotExecutable", text, 126)


def _not_run(type_name: str, text: str, exit_code: int) -> Ending:
    failure = plain_failure(type_name, text)
    return Raised(msgspec.structs.replace(failure, exit_code=exit_code))


def _fatal(type_name: str, text: str) -> CommandRefused:
    return CommandRefused(Raised(plain_failure(type_name, text), fatal=True))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
