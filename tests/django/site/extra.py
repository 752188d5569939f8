"""Tasks in a module outside the apps, and receivers of the task signals."""

# mypy: disable-error-code="untyped-decorator"

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import django

framework: Any = import_module("django_tasks" if django.VERSION < (6,) else "django.tasks")
signals: Any = import_module(f"{framework.__name__}.signals")
task = framework.task


@task
def elsewhere() -> str:
    return "found"


def hear(name: str) -> Any:
    def heard(task_result: Any, **_: Any) -> None:
        line = f"{name} {task_result.task.name} {task_result.status} {task_result.attempts}\n"
        with (Path(os.environ["SITE_FOLDER"]) / "heard").open("a") as file:
            file.write(line)
        # An error in a receiver must change nothing.
        raise RuntimeError("a receiver failed")

    return heard


started, finished = hear("started"), hear("finished")
signals.task_started.connect(started)
signals.task_finished.connect(finished)
