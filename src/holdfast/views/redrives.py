"""A redrive, and how far it is."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core import codec
from holdfast.core.model import JobFilter
from holdfast.durations import show_at, show_ms
from holdfast.rates import show_rate
from holdfast.upkeep import RedriveState
from holdfast.upkeep.redrives import RedriveView
from holdfast.views.values import at_of


class RedriveDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What it was told, and what became of the jobs it met: `capped` had been redriven too often,
    `unfit` have a payload that cannot be patched, `changed` were changed by others. Of those
    `retried`, `recurred` of the `died` ones died of the same as before, and `other` were cancelled
    or are gone."""

    id: str
    state: RedriveState
    text: str
    by: str
    started_at: str
    ended_at: str | None
    filter: JobFilter
    rate: str | None
    canaries: int
    max_redrives: int
    edit: Any
    delay: str
    total: int
    estimated: bool
    retried: int
    left: int
    capped: int
    unfit: int
    changed: int
    done: int
    died: int
    recurred: int
    other: int
    open: int


def redrive_view(view: RedriveView) -> RedriveDetails:
    redrive = view.redrive
    plan = redrive.plan
    return RedriveDetails(
        id=redrive.id,
        state=redrive.state,
        text=redrive.text,
        by=plan.by,
        started_at=show_at(redrive.started_at),
        ended_at=at_of(redrive.ended_at),
        filter=replace(plan.wanted, states=None),
        rate=None if plan.rate is None else show_rate(plan.rate),
        canaries=redrive.canaries,
        max_redrives=plan.redrives_max,
        edit=None if plan.patch is None else codec.decode(plan.patch),
        delay=show_ms(plan.delay_ms),
        total=redrive.total,
        estimated=redrive.estimated,
        retried=redrive.retried,
        left=redrive.left,
        capped=redrive.capped,
        unfit=redrive.unfit,
        changed=redrive.changed,
        done=view.done,
        died=view.died,
        recurred=view.recurred,
        other=view.other,
        open=view.open,
    )
