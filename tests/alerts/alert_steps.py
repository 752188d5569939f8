"""Helpers of the alert tests: a server whose steps the test takes, and what it delivered."""

import msgspec

from holdfast.alerts.alerter import Alerter
from holdfast.alerts.facts import FactReader
from holdfast.alerts.notify import Notice, Notifier
from holdfast.core.model import JobFilter, NewJob, Record, State
from holdfast.core.verdict import Cancel
from holdfast.core.workers import KIND as WORKER_KIND
from holdfast.core.workers import WorkerRecord
from holdfast.engines.base import Engine
from holdfast.ops import settings
from holdfast.ops.alerts import read_alerts
from holdfast.telemetry.event_log import EVENTS_KIND, FeedEvent, decode_events
from holdfast.testing.clock import ManualClock

RAISED, ENDED = "alert.raised", "alert.ended"
DEPTH = "depth/default"


class AlertServer:
    """One server. `notices` are what its webhook got; errors in `faults` are raised first."""

    def __init__(self, engine: Engine, clock: ManualClock, store: object = None) -> None:
        self.engine = engine
        self.notices: list[Notice] = []
        self.faults: list[BaseException] = []
        reader = FactReader(engine, store or engine, clock_s=lambda: clock.boot_ms() / 1000)
        self.alerter = Alerter(engine, reader, Notifier(engine, "default", self._deliver))

    async def _deliver(self, notice: Notice) -> None:
        if self.faults:
            raise self.faults.pop(0)
        self.notices.append(notice)

    async def look(self) -> None:
        await self.alerter.once()
        await self.alerter.delivered()

    @property
    def delivered(self) -> list[tuple[str, str, str]]:
        """The event, rule and subject of every notice."""
        return [(each.event, each.rule, each.about) for each in self.notices]


async def alert_states(engine: Engine) -> dict[str, str]:
    """The alerts of the store, by key."""
    return {
        alert.key: "raised" if alert.is_raised else "ended"
        for alert, _ in await read_alerts(engine)
    }


async def events(engine: Engine) -> list[FeedEvent]:
    """The events of alerts in the live feed."""
    found = await engine.load(EVENTS_KIND, limit=1_000)
    every = [each for record in found for each in decode_events(record)]
    return [each for each in every if each.kind.startswith("alert.")]


async def enqueue_jobs(
    engine: Engine, count: int, queue: str = "default", first: int = 0
) -> list[str]:
    ids = [f"{queue}-{number}" for number in range(first, first + count)]
    for at in range(0, count, 1_000):
        await engine.enqueue([NewJob(id=id_, task="t", queue=queue) for id_ in ids[at:][:1_000]])
    return ids


async def cancel_waiting(engine: Engine) -> None:
    await engine.amend(JobFilter(states=(State.WAITING,)), Cancel(), limit=1_000)


async def heartbeat(engine: Engine, name: str, *queues: str, **more: object) -> None:
    """Write a worker's heartbeat."""
    facts = {"name": name, "id": f"{name}-1", "host": "h", "pid": 1, "started_at": 0}
    queues_by_weight = dict.fromkeys(queues or ("default",), 1)
    worker = msgspec.convert({**facts, "queues": queues_by_weight, **more}, WorkerRecord)
    found = [each for each in await engine.load(WORKER_KIND, limit=100) if each.key == name]
    version = found[0].version if found else 0
    value = msgspec.json.encode(worker)
    await engine.save([Record(kind=WORKER_KIND, key=name, value=value, version=version)])


async def set_thresholds(engine: Engine, **levels: str | None) -> None:
    for name, text in levels.items():
        await settings.save_setting(engine, f"alert_{name}", text)
