"""The workers as the store knows them: who there is, how each one is, and orders to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.model import Record
from holdfast.core.workers import (
    KIND,
    ORDER_KIND,
    Health,
    Order,
    WorkerRecord,
    health,
)
from holdfast.engines.base import Engine, Saved
from holdfast.errors import EngineUnavailable, UsageError

Kind = TypeVar("Kind", bound=msgspec.Struct)

_TURNS = 20

OrderName = Literal["stop", "drain", "cordon", "uncordon"]


class Asked(NamedTuple):
    """The workers that an order went to, and those of the names that are not there."""

    workers: tuple[str, ...]
    missing: tuple[str, ...]


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's record, how old it is, and what follows from both."""

    record: WorkerRecord
    age_ms: int
    health: Health
    why: str

    @property
    def name(self) -> str:
        return self.record.name


class Workers:
    """What an operator can see of workers, and ask of them from anywhere."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def all(self) -> list[WorkerView]:
        """By name."""
        orders = await self.orders()
        views: list[WorkerView] = []
        for record in await load_all(self._engine, KIND):
            known = decode(record.value, WorkerRecord)
            if known is None:
                continue
            cordoned = orders.get(known.name, Order()).cordoned
            known = replace(known, cordoned=cordoned)
            state, why = health(known, record.age_ms)
            views.append(WorkerView(record=known, age_ms=record.age_ms, health=state, why=why))
        return views

    async def get(self, name: str) -> WorkerView | None:
        return next((view for view in await self.all() if view.name == name), None)

    async def orders(self) -> dict[str, Order]:
        found = await load_all(self._engine, ORDER_KIND)
        read = ((record.key, decode(record.value, Order)) for record in found)
        return {name: order for name, order in read if order is not None}

    async def cordon(self, name: str, *, by: str = "") -> None:
        """It leases nothing more, over restarts too, until it is uncordoned."""
        await self._known(name)
        await self._order(name, cordoned=True, by=by)

    async def uncordon(self, name: str, *, by: str = "") -> None:
        await self._known(name)
        await self._order(name, cordoned=False, by=by)

    async def stop(self, name: str, *, by: str = "") -> None:
        """It releases what it has and ends, at once."""
        view = await self._known(name)
        await self._order(name, ending="stop", ending_id=view.record.id, by=by)

    async def drain(self, name: str, *, by: str = "") -> None:
        """It leases nothing more, finishes what it has, however long that takes, and ends."""
        view = await self._known(name)
        await self._order(name, ending="drain", ending_id=view.record.id, by=by)

    async def order(
        self, order: OrderName, names: Iterable[str] | None = None, *, by: str = ""
    ) -> Asked:
        """Ask these workers, or all of them."""
        there = [view.name for view in await self.all()]
        wanted = there if names is None else list(dict.fromkeys(names))
        asked = tuple(name for name in wanted if name in there)
        for name in asked:
            match order:
                case "stop":
                    await self.stop(name, by=by)
                case "drain":
                    await self.drain(name, by=by)
                case "cordon":
                    await self.cordon(name, by=by)
                case "uncordon":
                    await self.uncordon(name, by=by)
        return Asked(asked, tuple(name for name in wanted if name not in there))

    async def nudge(self, name: str) -> None:
        """It renews at once, and so hears of a cancel."""
        order = (await self.orders()).get(name, Order())
        await self._order(name, renew=order.renew + 1)

    async def forget(self, name: str) -> None:
        """Remove what is kept about a worker that is gone."""
        for kind in (KIND, ORDER_KIND):
            for record in await load_all(self._engine, kind):
                if record.key == name:
                    await self._engine.save([replace(record, value=None)])

    async def _known(self, name: str) -> WorkerView:
        views = await self.all()
        for view in views:
            if view.name == name:
                return view
        there = ", ".join(view.name for view in views) or "none"
        raise UsageError(f"no worker is called {name[:80]!r}; there are: {there}")

    async def _order(self, name: str, **changes: object) -> None:
        """Changed on the version that was read, so that two operators do not undo each other."""
        for _ in range(_TURNS):
            found = [one for one in await load_all(self._engine, ORDER_KIND) if one.key == name]
            known = decode(found[0].value, Order) if found else None
            order = replace(known or Order(), **changes)
            version = found[0].version if found else 0
            record = Record(kind=ORDER_KIND, key=name, value=encode(order), version=version)
            if await self._engine.save([record]) == [Saved.SAVED]:
                return
        raise EngineUnavailable(f"the order to worker {name} was overtaken {_TURNS} times")


async def load_all(engine: Engine, kind: str) -> list[Record]:
    """Every record of a kind, in pages."""
    records: list[Record] = []
    after: str | None = None
    while page := await engine.load(kind, after=after, limit=limits.PAGE_MAX):
        records += page
        after = page[-1].key
        if len(page) < limits.PAGE_MAX:
            break
    return records


def encode(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value)


def decode(value: bytes | None, kind: type[Kind]) -> Kind | None:
    """None for what another version wrote and this one cannot read."""
    try:
        return None if value is None else msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError:
        return None
