"""How everything stands, read at once: queues, workers, breakers, redrives and alerts."""

from __future__ import annotations

import msgspec

from holdfast.alerts import Seen, alerts_of
from holdfast.core.model import QueueView
from holdfast.engines.base import Engine
from holdfast.upkeep import Redrives, RedriveView, wall_ms
from holdfast.worker.breaker_book import Known, breakers_of
from holdfast.worker.registry import Workers, WorkerView


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """By name, but for redrives: those that have not ended, oldest first; and for alerts: those
    that are raised, the critical ones first."""

    queues: list[QueueView]
    workers: list[WorkerView]
    breakers: dict[str, Known]
    redrives: list[RedriveView]
    alerts: list[Seen]


async def standing_of(engine: Engine) -> Standing:
    return Standing(
        queues=await engine.queues(),
        workers=await Workers(engine).all(),
        breakers=await breakers_of(engine),
        redrives=await Redrives(engine, wall_ms).going_on(),
        alerts=[each for each in await alerts_of(engine) if each[0].is_raised],
    )
