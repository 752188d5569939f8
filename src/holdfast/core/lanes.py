"""Which lane a job waits in: jobs that share their queue, task, tenant and limits are alike to
whoever leases, so one of them stands for all. Pure; engines keep the lanes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter
from typing import Any

import msgspec

from holdfast.core import limits
from holdfast.core.codec import JSON
from holdfast.core.flow import Limit, SlotKey
from holdfast.core.model import Job, NewJob, Queue
from holdfast.errors import InvalidJob, InvalidQueue

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_OWN = ("queue", "task", "tenant", "group")


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """`tenant` is None where the queue is not fair, and "" for jobs without one where it is."""

    queue: str
    task: str
    tenant: str | None
    slots: tuple[SlotKey, ...]


def lane_of(job: NewJob | Job, queue: Queue, *, strict: bool = False) -> Lane | None:
    """The job's lane; None where nothing but priority and time decides.

    A template's field that the job lacks is refused when `strict`, as at the door; a job that is
    in already, and comes under such a limit, counts as having it empty.
    """
    if not queue.limits and queue.fairness == "off":
        return None
    slots = tuple(
        sorted(
            SlotKey(limit.name, _key(limit, job, strict=strict))
            for limit in queue.limits
            if limit.task is None or limit.task == job.task
        )
    )
    tenant = None if queue.fairness == "off" else job.tenant or ""
    if tenant is None and not slots:
        return None
    return Lane(queue=queue.name, task=job.task, tenant=tenant, slots=slots)


def is_same_flow(before: Queue, after: Queue) -> bool:
    """Do jobs stay in their lanes when a queue's settings change so? Numbers alone move nobody."""
    return _shape(before) == _shape(after)


def fields_of(template: str) -> tuple[str, ...]:
    """The names in a template; InvalidQueue if it is none."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise InvalidQueue(f"key template {template[:80]!r}: {error}") from None
    names = []
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        if not name.isidentifier() or spec or conversion:
            raise InvalidQueue(
                f"key template {template[:80]!r}: {{{name}}} is no plain field such as {{tenant}}"
            )
        names.append(name)
    return tuple(names)


def _key(limit: Limit, job: NewJob | Job, *, strict: bool) -> str:
    names = fields_of(limit.key)
    if not names:
        return limit.key
    values: dict[str, str] = {}
    inside: Mapping[str, Any] | None = None
    for name in names:
        value = getattr(job, name) if name in _OWN else job.labels.get(name)
        if value is None and name not in _OWN:
            inside = _payload_fields(job) if inside is None else inside
            value = _scalar(inside.get(name))
        if value is None and strict:
            raise InvalidJob(
                f"job {job.id} has no {name}, which limit {limit.name} counts by"
                f" ({limit.key}): give it a {_remedy(name)}"
            )
        values[name] = value or ""
    key = limit.key.format_map(values)
    if _is_storable(key):
        return key
    if strict:
        raise InvalidJob(
            f"limit {limit.name} makes a key of job {job.id} that is over {limits.NAME_BYTES_MAX}"
            " bytes, or has a NUL or a lone surrogate"
        )
    return limit.key.format_map(dict.fromkeys(names, ""))


def _is_storable(key: str) -> bool:
    return not _UNSTORABLE.search(key) and len(key.encode()) <= limits.NAME_BYTES_MAX


def _payload_fields(job: NewJob | Job) -> Mapping[str, Any]:
    if job.content_type != JSON or not job.payload.startswith(b"{"):
        return {}
    try:
        found = msgspec.json.decode(job.payload)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _scalar(value: Any) -> str | None:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _remedy(name: str) -> str:
    return name if name in _OWN else f"label {name}, or {name} in its JSON payload"


def _shape(queue: Queue) -> object:
    bounds = sorted((limit.name, limit.task or "", limit.key) for limit in queue.limits)
    return bounds, queue.fairness != "off"
