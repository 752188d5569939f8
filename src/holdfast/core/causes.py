"""What keeps a waiting job beside its time and its workers: its parents, its group, its limits and
its tenant. Facts in, causes out."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.core.flow import Slot, TenantView, Waits
from holdfast.core.model import Job, State
from holdfast.core.text import counted

_NAMES_MAX = 3


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """`command` is what a person could type after the name of the program, "" if nothing."""

    code: str
    text: str
    remedy: str = ""
    command: str = ""
    at: int | None = None


def of_the_flow(job: Job, waits: Waits, parents: dict[str, State], now: int) -> Iterator[Cause]:
    """`parents` are the states of the first of those it waits for."""
    if waits.parent_count:
        yield _parents(waits, parents)
    if waits.group_head is not None:
        yield Cause(
            code="group",
            text=f"job {waits.group_head} of its group {job.group} goes first",
            remedy="see what that one does",
            command=f"job explain {waits.group_head}",
        )
    for slot in waits.slots:
        yield from _slot(job, slot, now)
    if waits.tenant is not None and waits.tenant.noisy:
        yield _noisy(waits.tenant)


def _parents(waits: Waits, states: dict[str, State]) -> Cause:
    told = [
        f"{id_} ({states[id_]})" if id_ in states else id_ for id_ in waits.parents[:_NAMES_MAX]
    ]
    rest = waits.parent_count - len(told)
    more = f" and {rest} more" if rest > 0 else ""
    text = f"it waits for {counted(waits.parent_count, 'job')}: {', '.join(told)}{more}"
    first = waits.parents[0] if waits.parents else ""
    if states.get(first) in (State.DEAD, State.CANCELLED):
        return Cause(
            code="parents",
            text=f"{text}; it is held until what died is put back to work",
            remedy="run that one again",
            command=f"job retry {first}",
        )
    return Cause(
        code="parents",
        text=text,
        remedy="see what keeps them",
        command=f"job explain {first}" if first else "",
    )


def has_room(slot: Slot) -> bool:
    """For one more job, now."""
    return not _is_full(slot) and (slot.rate is None or slot.free_ms == 0)


def _is_full(slot: Slot) -> bool:
    return slot.concurrency is not None and slot.used >= slot.concurrency


def _slot(job: Job, slot: Slot, now: int) -> Iterator[Cause]:
    name = f"limit {slot.limit}" + (f" for {slot.key}" if slot.key else "")
    if _is_full(slot):
        holders = ", ".join(slot.holders[:_NAMES_MAX])
        rest = slot.used - min(_NAMES_MAX, len(slot.holders))
        by = f", by {holders}" + (f" and {rest} more" if rest > 0 else "") if holders else ""
        yield Cause(
            code="limit_full",
            text=f"{name} is full: {slot.used} of {slot.concurrency} are held{by}",
            remedy="wait until one of them ends, or raise it",
            command=f"queue limits {job.queue}",
        )
    if slot.rate is not None and slot.free_ms > 0:
        yield Cause(
            code="rate",
            text=f"{name} has let as many jobs start as it may for now",
            remedy="wait, or raise it",
            command=f"queue limits {job.queue}",
            at=now + slot.free_ms,
        )


def _noisy(tenant: TenantView) -> Cause:
    return Cause(
        code="tenant_noisy",
        text=f"its tenant {tenant.tenant or '(none)'} takes {tenant.share:.0%} of the queue's time,"
        f" with {counted(tenant.leased, 'job')} leased, and goes behind the others",
        remedy="start more workers",
    )
