"""Lanes: waiting jobs with the same queue, task, tenant and limit keys. If one job of a lane cannot
start because of a limit, none can. Pure; engines store the lanes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter
from typing import Any

import msgspec

from holdfast.core import bounds
from holdfast.core.codec import JSON
from holdfast.core.limits import Limit, SlotKey
from holdfast.core.model import Job, NewJob, Queue
from holdfast.errors import InvalidJob, InvalidQueue

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_OWN = ("queue", "task", "tenant", "group")


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a lane. `tenant` is None in a queue without fairness, and "" for a job
    without a tenant in a queue with it."""

    queue: str
    task: str
    tenant: str | None
    slots: tuple[SlotKey, ...]


def lane_of(job: NewJob | Job, queue: Queue, *, strict: bool = False) -> Lane | None:
    """The job's lane; None if its queue has neither limits for it nor fairness.

    With `strict`, as for a new job, a job that lacks a field of a key template is refused. For a
    stored job, the missing field counts as empty.
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
    """Whether all jobs stay in their lanes when a queue's settings change from `before` to `after`.
    A changed number in a limit moves no job."""
    return _shape(before) == _shape(after)


def fields_of(template: str) -> tuple[str, ...]:
    """The field names in a key template; InvalidQueue if the template is malformed."""
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
                f"key template {template[:80]!r}: {{{name}}} is not a plain field such as"
                f" {{tenant}}"
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
            f"the key that limit {limit.name} makes for job {job.id} is over"
            f" {bounds.NAME_BYTES_MAX} bytes, or has a NUL or a lone surrogate"
        )
    return limit.key.format_map(dict.fromkeys(names, ""))


def _is_storable(key: str) -> bool:
    return not _UNSTORABLE.search(key) and len(key.encode()) <= bounds.NAME_BYTES_MAX


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
    keys = sorted((limit.name, limit.task or "", limit.key) for limit in queue.limits)
    return keys, queue.fairness != "off"
