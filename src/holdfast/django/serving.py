"""What a worker loads: Django set up, and every task of the project made known to Holdfast."""

from __future__ import annotations

import os

import django
from django.apps import apps
from django.utils.module_loading import import_string

from holdfast.app import Holdfast
from holdfast.core import limits
from holdfast.django import running
from holdfast.django.api import InvalidTaskBackend, task_backends
from holdfast.django.backend import HoldfastBackend

ALIAS = "HOLDFAST_DJANGO_BACKEND"
"""Names one of several task backends in the environment."""


def application() -> Holdfast:
    """Its handlers are the project's tasks, and nothing else."""
    if not apps.ready:
        django.setup()
    backend = chosen(os.environ.get(ALIAS))
    running.discover(backend.options.get("modules", ()))
    for path, task in running.known_tasks().items():
        if limits.TASK_NAME.match(path) and limits.QUEUE_NAME.match(task.queue_name):
            backend.task_for(task)
    return backend.app


def chosen(alias: str | None) -> HoldfastBackend:
    """The backend of that name, or the only one that is Holdfast's."""
    ours = [
        name
        for name, given in task_backends.settings.items()
        if issubclass(import_string(given["BACKEND"]), HoldfastBackend)
    ]
    if alias in ours or (alias is None and len(ours) == 1):
        found: HoldfastBackend = task_backends[alias or ours[0]]
        return found
    if alias is None and "default" in ours:
        default: HoldfastBackend = task_backends["default"]
        return default
    told = ", ".join(ours) or "none"
    raise InvalidTaskBackend(
        f"the task backend {alias!r} is none of holdfast.django.HoldfastBackend: in TASKS, there "
        f"are {told}"
        if alias
        else f"TASKS must name one backend holdfast.django.HoldfastBackend; there are {told}"
    )
