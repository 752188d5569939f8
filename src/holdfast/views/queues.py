"""A queue: its settings, and how it stands."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.flow import Limit, Slot, TenantView
from holdfast.core.model import Queue, QueueView
from holdfast.core.workers import QUEUE_PREFIX

COUNTS = ("ready", "delayed", "blocked", "leased", "overdue", "done", "dead")
_HELD = (*COUNTS, "cancelled")


class QueueCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue stands; `estimated` names counts that are at least so many."""

    name: str
    ready: int
    delayed: int
    blocked: int
    leased: int
    overdue: int
    done: int
    dead: int
    cancelled: int
    oldest_age_ms: int | None
    paused: bool
    accepting: bool
    estimated: tuple[str, ...]


class QueueDetails(Queue, frozen=True, kw_only=True):
    """The settings of a queue, and how it stands."""

    ready: int
    delayed: int
    blocked: int
    leased: int
    overdue: int
    done: int
    dead: int
    cancelled: int
    oldest_age_ms: int | None
    estimated: tuple[str, ...]


class LimitsView(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a queue, and who holds their slots."""

    limits: tuple[Limit, ...]
    slots: tuple[Slot, ...]


class TenantsView(msgspec.Struct, frozen=True, kw_only=True):
    tenants: tuple[TenantView, ...]


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """`left` jobs wait or run."""

    queue: str
    accepting: bool
    left: int


class Cleared(msgspec.Struct, frozen=True, kw_only=True):
    """`found` jobs fit, at least so many with `more`; `deleted` of them are gone."""

    queue: str
    found: int
    more: bool
    deleted: int


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that went, or would go, with its `jobs`."""

    queue: str
    jobs: int
    deleted: bool


def counts_view(view: QueueView) -> QueueCounts:
    return QueueCounts(
        **_counts(view),
        name=view.queue.name,
        paused=view.queue.paused,
        accepting=view.queue.accepting,
    )


def details_view(view: QueueView) -> QueueDetails:
    queue = view.queue
    settings = {name: getattr(queue, name) for name in queue.__struct_fields__}
    return QueueDetails(**settings, **_counts(view))


def worth_showing(counts: QueueCounts) -> bool:
    """A queue of a worker's own says nothing while it is empty."""
    own = counts.name.startswith(QUEUE_PREFIX)
    stopped = counts.paused or not counts.accepting
    return not own or stopped or any(getattr(counts, name) for name in _HELD)


def _counts(view: QueueView) -> dict[str, Any]:
    return {
        **{name: getattr(view, name) for name in _HELD},
        "oldest_age_ms": view.oldest_age_ms,
        "estimated": tuple(sorted(view.estimated)),
    }
