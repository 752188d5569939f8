"""Redrives: dead letters that upkeep puts back to work bit by bit."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.errors import NotFound
from holdfast.retrying import Pace
from holdfast.server.calls import Call
from holdfast.server.dead import Redriven, text_of, which
from holdfast.server.filters import Filter
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.shapes import Json, QueueName, Rate, Seconds
from holdfast.upkeep import Redrives, wall_ms
from holdfast.views.redrives import RedriveDetails, redrive_view


class RedriveBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters: those that fit a `filter`, or `all`; and how fast.

    With `canary` a hundredth goes first, and it stops if one of them dies of the same within
    `canary_wait`. `edit` is a JSON merge patch for each payload, first. What was redriven
    `max_redrives` times is left alone: 3, unless ids are given. With `dry_run` they are only
    counted.
    """

    filter: Filter | None = None
    all: bool = False
    rate: Rate | None = None
    canary: bool = False
    canary_wait: Seconds = "10m"
    max_redrives: Redriven | None = None
    edit: Json | UnsetType = UNSET
    delay: Seconds = 0
    dry_run: bool = False


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """`found` dead letters fit, at least so many with `more`; `capped` others were redriven too
    often already. There is no `redrive` after a dry run."""

    found: int
    more: bool
    capped: int
    redrive: RedriveDetails | None


class RedriveList(msgspec.Struct, frozen=True):
    """Oldest first."""

    redrives: list[RedriveDetails]


@operation("GET", "/v1/redrives", needs=Scope.OPERATE)
async def list_redrives(call: Call) -> RedriveList:
    """Every redrive, and how far it is."""
    return RedriveList([redrive_view(view) for view in await _redrives(call).all()])


@operation("POST", "/v1/redrives", needs=Scope.OPERATE, status=201)
async def start_redrive(call: Call, body: RedriveBody) -> Started:
    """Let upkeep put dead letters back to work. It is durable when the answer comes."""
    pace = Pace(
        delay=body.delay,
        edit=text_of(body.edit),
        max_redrives=body.max_redrives,
        rate=body.rate,
        canary=body.canary,
        canary_wait=body.canary_wait,
    )
    plan = pace.plan(which(body.filter, every=body.all), call.caller.name)
    redrives = _redrives(call)
    found = await redrives.survey(plan)
    redrive = None
    if not body.dry_run:
        redrive = await _one(call, (await redrives.start(plan, found)).id)
    return Started(found=found.fitting, more=found.more, capped=found.capped, redrive=redrive)


@operation("GET", "/v1/redrives/{id}", needs=Scope.OPERATE)
async def show_redrive(call: Call, id: QueueName) -> RedriveDetails:
    """A redrive, and how far it is."""
    return await _one(call, id)


@operation("POST", "/v1/redrives/{id}/cancel", needs=Scope.OPERATE, repeatable=True)
async def cancel_redrive(call: Call, id: QueueName) -> RedriveDetails:
    """Put back no more; what was put back stays. One that has ended stays as it is."""
    await _one(call, id)
    await _redrives(call).cancel(id, call.caller.name)
    return await _one(call, id)


OPERATIONS: tuple[Operation, ...] = (list_redrives, start_redrive, show_redrive, cancel_redrive)


def _redrives(call: Call) -> Redrives:
    return Redrives(call.engine, wall_ms)


async def _one(call: Call, id: str) -> RedriveDetails:
    view = await _redrives(call).get(id)
    if view is None:
        raise NotFound(f"no redrive has the id {id[:80]!r}: GET /v1/redrives lists those there are")
    return redrive_view(view)
