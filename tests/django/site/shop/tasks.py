"""Tasks of every kind that Django supports."""

# mypy: disable-error-code="untyped-decorator"

import asyncio
from importlib import import_module
from typing import Any

import django
from django.db import connection

task: Any = import_module("django_tasks" if django.VERSION < (6,) else "django.tasks").task


@task
def add(one: int, other: int = 0) -> int:
    return one + other


@task(queue_name="mail", priority=7)
async def slow(seconds: float) -> list[float]:
    await asyncio.sleep(seconds)
    return [seconds]


@task(takes_context=True)
def shaky(context: Any, attempts: int) -> int:
    """Done at its last attempt, if it has so many."""
    result = context.task_result
    assert (result.status, result.attempts, result.backend) == (
        "RUNNING",
        context.attempt,
        "default",
    )
    assert result.enqueued_at is not None
    if context.attempt < attempts:
        raise LookupError(f"attempt {context.attempt} of {attempts}")
    return int(context.attempt)


@task
def ask(number: int) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s + 1", [number])
        return int(cursor.fetchone()[0])


@task
def unspeakable() -> object:
    return object()


def plain() -> None:
    raise AssertionError("it is no task, and it ran")
