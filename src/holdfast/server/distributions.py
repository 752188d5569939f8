"""Distributions: jobs of many queues brought to one, in fair turns, by upkeep."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core import limits
from holdfast.errors import NotFound
from holdfast.server.calls import Call
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.queues import there
from holdfast.server.shapes import QueueName
from holdfast.upkeep import Distribution, Distributions
from holdfast.upkeep.distributions import DEPTH_MAX

_Weight = Annotated[int, Meta(ge=1, le=limits.WEIGHT_MAX)]


class DistributionBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """From the queues that `source` fits, while fewer than `depth` jobs wait in the one that they
    feed. `weights` are of those queues; 1 is the rule."""

    source: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.*?-]{1,80}$", examples=["mail.*"])]
    depth: Annotated[int, Meta(ge=1, le=DEPTH_MAX)] = 1_000
    weights: Annotated[dict[QueueName, _Weight], Meta(max_length=limits.WEIGHTS_MAX)] = {}


class DistributionList(msgspec.Struct, frozen=True):
    """By the queue that they feed."""

    distributions: list[Distribution]


class Forgotten(msgspec.Struct, frozen=True):
    queue: str
    stored: bool


@operation("GET", "/v1/distributions", needs=Scope.OPERATE)
async def list_distributions(call: Call) -> DistributionList:
    """What upkeep brings where."""
    return DistributionList(await Distributions(call.engine).all())


@operation("PUT", "/v1/distributions/{queue}", needs=Scope.OPERATE)
async def store_distribution(call: Call, queue: QueueName, body: DistributionBody) -> Distribution:
    """Let upkeep bring jobs of many queues to this one, in fair turns."""
    await there(call.engine, queue)
    wanted = Distribution(source=body.source, target=queue, depth=body.depth, weights=body.weights)
    await Distributions(call.engine).put(wanted)
    return wanted


@operation("DELETE", "/v1/distributions/{queue}", needs=Scope.OPERATE)
async def forget_distribution(call: Call, queue: QueueName) -> Forgotten:
    """Let upkeep do it no more."""
    if not await Distributions(call.engine).remove(queue):
        raise NotFound(f"no distribution to {queue[:80]!r} is stored")
    return Forgotten(queue, stored=False)


OPERATIONS: tuple[Operation, ...] = (
    list_distributions,
    store_distribution,
    forget_distribution,
)
