"""What runs a program or sends a request from where the workers are, and who may ask for it."""

from __future__ import annotations

from holdfast.core.model import NewJob
from holdfast.errors import Forbidden
from holdfast.server.callers import Caller, Scope
from holdfast.worker.calls import BUILT_IN

TASKS = BUILT_IN


def runs_commands(job: NewJob | str) -> bool:
    """Of a job on its way in, or of a task."""
    return (job if isinstance(job, str) else job.task) in TASKS


def refuse_commands(caller: Caller, what: str) -> None:
    """Raise unless the caller has the right."""
    if not caller.may(Scope.RUN_COMMANDS):
        raise Forbidden(command_text(what))


def command_text(what: str) -> str:
    tasks = " and ".join(sorted(TASKS))
    return (
        f"{what}: over HTTP, {tasks} jobs and schedules are made and changed only with a token "
        f"that has {Scope.RUN_COMMANDS.value}"
    )
