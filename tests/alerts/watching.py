"""A server's look at the alerts, made when the test says so, and what came of it."""

import msgspec

from holdfast import config
from holdfast.alerts import Alerter, Reader, Teller, alerts_of
from holdfast.alerts.telling import Notice
from holdfast.core.model import JobFilter, NewJob, Record, State
from holdfast.core.verdict import Cancel
from holdfast.core.workers import KIND as WORKER_KIND
from holdfast.core.workers import WorkerRecord
from holdfast.engines.base import Engine
from holdfast.telemetry.notable import KIND as EVENTS_KIND
from holdfast.telemetry.notable import Notable, events_of
from holdfast.testing.clock import ManualClock

RAISED, ENDED = "alert.raised", "alert.ended"
DEPTH = "depth/default"


class Guard:
    """One server. `notices` are what its webhook was given; it raises what is in `faults` first."""

    def __init__(self, engine: Engine, clock: ManualClock, store: object = None) -> None:
        self.engine = engine
        self.notices: list[Notice] = []
        self.faults: list[BaseException] = []
        reader = Reader(engine, store or engine, clock_s=lambda: clock.boot_ms() / 1000)
        self.alerter = Alerter(engine, reader, Teller(engine, "default", self._deliver))

    async def _deliver(self, notice: Notice) -> None:
        if self.faults:
            raise self.faults.pop(0)
        self.notices.append(notice)

    async def look(self) -> None:
        await self.alerter.once()
        await self.alerter.told()

    @property
    def told(self) -> list[tuple[str, str, str]]:
        return [(each.event, each.rule, each.about) for each in self.notices]


async def standing(engine: Engine) -> dict[str, str]:
    """The alerts of the store, by key."""
    return {
        alert.key: "raised" if alert.is_raised else "ended" for alert, _ in await alerts_of(engine)
    }


async def events(engine: Engine) -> list[Notable]:
    """Those of alerts, as the live feed has them."""
    found = await engine.load(EVENTS_KIND, limit=1_000)
    every = [each for record in found for each in events_of(record)]
    return [each for each in every if each.kind.startswith("alert.")]


async def fill(engine: Engine, count: int, queue: str = "default", first: int = 0) -> list[str]:
    ids = [f"{queue}-{number}" for number in range(first, first + count)]
    for at in range(0, count, 1_000):
        await engine.enqueue([NewJob(id=id_, task="t", queue=queue) for id_ in ids[at:][:1_000]])
    return ids


async def empty(engine: Engine) -> None:
    await engine.amend(JobFilter(states=(State.WAITING,)), Cancel(), limit=1_000)


async def come(engine: Engine, name: str, *queues: str, **more: object) -> None:
    """A worker writes of itself."""
    facts = {"name": name, "id": f"{name}-1", "host": "h", "pid": 1, "started_at": 0}
    queues_by_weight = dict.fromkeys(queues or ("default",), 1)
    worker = msgspec.convert({**facts, "queues": queues_by_weight, **more}, WorkerRecord)
    found = [each for each in await engine.load(WORKER_KIND, limit=100) if each.key == name]
    version = found[0].version if found else 0
    value = msgspec.json.encode(worker)
    await engine.save([Record(kind=WORKER_KIND, key=name, value=value, version=version)])


async def set_(engine: Engine, **levels: str | None) -> None:
    for name, text in levels.items():
        await config.store(engine, f"alert_{name}", text)
