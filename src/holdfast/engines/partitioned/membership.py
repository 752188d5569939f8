"""Which partitions are in use: opens them, shuts out those that fail, and lets them back in.

A partition comes back only if it is the store that the partition map names, after a clean
lifecycle read and a write, and with the current queue settings. Nothing here concerns jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import uuid_utils

from holdfast.core.model import JobFilter
from holdfast.engines.base import Engine, Saved
from holdfast.engines.extras import PartitionView
from holdfast.engines.partitioned import settings
from holdfast.engines.partitioned.partition import (
    Partition,
    PartitionHealth,
    PartitionIdentity,
    PartitionStore,
    after_clean_read,
    after_failure,
    check_distinct,
    check_map,
    known_map,
    map_record,
    retry_ms,
    store_record,
)
from holdfast.errors import (
    ConfigError,
    EngineClosed,
    EngineError,
    EngineUnavailable,
    HoldfastError,
    UsageError,
)

_log = logging.getLogger("holdfast.partitioned")
OPEN_S = 10.0
"""At an opening, a partition that has not answered by then is stuck, and the others begin."""

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[object]]


class Membership:
    """`sleep` waits between two attempts to reopen a partition; tests replace it."""

    def __init__(self, partitions: Sequence[Partition], *, sleep: Sleep = asyncio.sleep) -> None:
        self.all: tuple[Partition, ...] = tuple(partitions)
        self._sleep = sleep
        self._agreement = MapAgreement(self.all)
        self._tries: dict[int, asyncio.Task[None]] = {}
        self._closed = False
        self.changed: asyncio.Event = asyncio.Event()
        """Set and replaced whenever a partition is shut out or let back in."""

    @property
    def usable(self) -> list[Partition]:
        return [each for each in self.all if each.is_in]

    @property
    def whole(self) -> bool:
        return all(each.is_in for each in self.all)

    async def open(self, *, create: bool = True) -> None:
        """Open all; those that fail are shut out. Raises if none can be opened. Missing files are
        created at the first opening only, and never without `create`."""
        self._closed = False
        for partition in self.all:
            partition.health = PartitionHealth()
        try:
            identities = await self._open_each(create=create)
            for place, error in (await self._agreement.agree(identities)).items():
                await self.all[place].close()
                self.shut_out(self.all[place], error)
            await self._all_of(Partition.read_lifecycle, self.usable)
            await self._each(self.usable, lambda each: settings.catch_up(each, self.usable))
            self.some()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._closed = True
        tries = list(self._tries.values())
        for task in tries:
            task.cancel()
        await asyncio.gather(*tries, return_exceptions=True)
        answers = await asyncio.gather(*(each.close() for each in self.all), return_exceptions=True)
        self._ring()
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, EngineError):
                raise answer

    def some(self) -> list[Partition]:
        """The partitions in use; EngineUnavailable if there is none."""
        usable = self.usable
        if not usable:
            raise self.all[0].unavailable()
        return usable

    def views(self) -> list[PartitionView]:
        now = _now_ms()
        return [each.view(now) for each in self.all]

    async def count(self) -> None:
        with contextlib.suppress(EngineError):
            found = await self.ask_all(lambda engine: engine.queues())
            for place, views in found.items():
                self.all[place].counted(views)

    def first_out(self) -> Partition:
        return next(each for each in self.all if not each.is_in)

    async def ask(self, partition: Partition, call: Callable[[Engine], Awaitable[T]]) -> T:
        """Call the partition's engine; an EngineError shuts the partition out and is raised."""
        try:
            return await call(partition.engine)
        except EngineClosed:
            raise
        except EngineError as error:
            self.shut_out(partition, error)
            raise

    async def ask_all(self, call: Callable[[Engine], Awaitable[T]]) -> dict[int, T]:
        """The answers of the partitions in use, by place; at least one."""
        return await self.ask_each((each, call) for each in self.some())

    async def ask_each(
        self, calls: Iterable[tuple[Partition, Callable[[Engine], Awaitable[T]]]]
    ) -> dict[int, T]:
        """Call several at once; those that fail are shut out and have no answer. If all fail, the
        first error is raised. A UsageError concerns the call itself and is always raised."""
        pending = list(calls)
        answers = await asyncio.gather(
            *(self.ask(partition, call) for partition, call in pending), return_exceptions=True
        )
        found: dict[int, T] = {}
        failures: list[EngineError] = []
        for (partition, _), answer in zip(pending, answers, strict=True):
            if isinstance(answer, EngineError) and not isinstance(answer, EngineClosed):
                failures.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[partition.place] = answer
        if failures and not found:
            raise failures[0]
        return found

    def shut_out(self, partition: Partition, error: HoldfastError) -> None:
        if not partition.health.is_out:
            _log.warning("partition %s is shut out: %s", partition.name, error)
        partition.health = after_failure(partition.health, error, _now_ms())
        trying = self._tries.get(partition.place)
        if not self._closed and (trying is None or trying.done()):
            # A call that fails after `close` must not reopen anything.
            self._tries[partition.place] = asyncio.create_task(self._try_again(partition))
        self._ring()

    async def _try_again(self, partition: Partition) -> None:
        while not partition.is_in:
            wait_s = retry_ms(partition.health) / 1000
            await self._sleep(wait_s * random.uniform(0.5, 1.0))
            try:
                await self._let_in(partition)
            except HoldfastError as error:
                partition.health = after_failure(partition.health, error, _now_ms())
            except Exception as error:  # noqa: BLE001 (without another try it would stay out for ever)
                _log.exception("partition %s could not be opened", partition.name)
                unknown = EngineUnavailable(f"{type(error).__name__}: {error}")
                partition.health = after_failure(partition.health, unknown, _now_ms())

    async def _let_in(self, partition: Partition) -> None:
        await self._reopen(partition)
        await partition.read_lifecycle()
        await partition.write()
        await settings.catch_up(partition, self.usable)
        partition.health = after_clean_read(partition.health, _now_ms())
        # Settings that changed between these two lines did not reach this partition yet.
        await settings.catch_up(partition, self.usable)
        _log.warning("partition %s is back in use", partition.name)
        self._ring()

    async def _reopen(self, partition: Partition) -> None:
        """The engine may work again, but another store may be in the place of the old one."""
        try:
            found = await partition.reopen()
        except EngineError:
            with contextlib.suppress(EngineError):
                await partition.close()
            found = await partition.reopen()
        try:
            await self._agreement.confirm(partition, found)
        except BaseException:
            with contextlib.suppress(EngineError):
                await partition.close()
            raise

    async def _open_each(self, *, create: bool) -> dict[int, PartitionIdentity]:
        """Open the stores that exist. They tell whether this is the first opening; if it is not, a
        missing store was lost."""
        gone = {
            place: text for place, text in (await self._all_of(Partition.missing)).items() if text
        }
        there = [each for each in self.usable if each.place not in gone]
        identities = await self._all_of(Partition.reopen, there)
        if gone and self._agreement.known(identities) is None:
            for partition in self.all:
                if not partition.is_in:
                    raise open_error(partition)
            if not create:
                raise EngineUnavailable(f"{next(iter(gone.values()))}: correct the URL")
            return await self._all_of(Partition.create, bounded=False)
        for place, text in gone.items():
            self.shut_out(self.all[place], self._agreement.loss(self.all[place], text))
        if not identities:
            raise self.all[0].health.error or self.all[0].unavailable()
        return identities

    async def _all_of(
        self,
        call: Callable[[Partition], Awaitable[T]],
        partitions: Sequence[Partition] | None = None,
        *,
        bounded: bool = True,
    ) -> dict[int, T]:
        """The answers by place, of all at once; those that fail, or do not answer in time, are shut
        out."""

        async def ask(partition: Partition) -> T:
            try:
                async with asyncio.timeout(OPEN_S if bounded else None):
                    return await call(partition)
            except TimeoutError:
                raise EngineUnavailable(f"it did not answer within {OPEN_S:g} s") from None

        asked = self.all if partitions is None else partitions
        answers = await asyncio.gather(*map(ask, asked), return_exceptions=True)
        found: dict[int, T] = {}
        for partition, answer in zip(asked, answers, strict=True):
            if isinstance(answer, HoldfastError):
                self.shut_out(partition, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[partition.place] = answer
        return found

    async def _each(
        self, partitions: Sequence[Partition], act: Callable[[Partition], Awaitable[None]]
    ) -> None:
        for partition in partitions:
            try:
                await act(partition)
            except EngineError as error:
                self.shut_out(partition, error)

    def _ring(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class MapAgreement:
    """Checks every opened store against the partition map, which it writes at the first opening."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self._all = partitions
        self._names = [each.name for each in partitions]
        self._stores: tuple[PartitionStore, ...] | None = None

    def known(
        self, identities: Mapping[int, PartitionIdentity]
    ) -> tuple[PartitionStore, ...] | None:
        """The map that these stores hold; None before the first opening."""
        self._stores = known_map(self._names, identities)
        return self._stores

    def loss(self, partition: Partition, gone: str) -> HoldfastError:
        """The error of a missing store: it was lost, or the URL's list is wrong."""
        stores = self._stores or ()
        if partition.place < len(stores) and partition.name != stores[partition.place].name:
            was = stores[partition.place].name
            return ConfigError(
                f"{gone}, and partition {partition.place + 1} was {was}: correct the URL"
            )
        return partition.lost(gone)

    async def agree(self, identities: dict[int, PartitionIdentity]) -> dict[int, EngineError]:
        """The stores, by place, that are not what the map says. ConfigError if the URL's list
        differs from the map."""
        stores = self.known(identities)
        if stores is None:
            stores = await self._create_map(identities)
        self._stores = stores
        for partition in self._all:
            # A wrong URL for a store on the map is that store's failure; for any other store, an
            # error of the list.
            renamed = (
                partition.place >= len(stores) or partition.name != stores[partition.place].name
            )
            if isinstance(partition.health.error, UsageError) and renamed:
                raise partition.health.error
        check_map(stores, self._names, {})
        lost: dict[int, EngineError] = {}
        for place, found in identities.items():
            partition = self._all[place]
            try:
                # Stores get their ids before the map is written: read the id again.
                now = await partition.open() if found.store is None else found
                await self.confirm(partition, now)
            except EngineError as error:
                lost[place] = error
        return lost

    async def confirm(self, partition: Partition, found: PartitionIdentity) -> None:
        """Check that the store is the one on the map, and write the map into it if it has none."""
        assert self._stores is not None
        check_map(self._stores, self._names, {partition.place: found})
        if found.map is None:
            [saved] = await partition.engine.save([map_record(self._stores)])
            if saved is Saved.STALE:
                check_map(self._stores, self._names, {partition.place: await partition.open()})

    async def _create_map(
        self, identities: dict[int, PartitionIdentity]
    ) -> tuple[PartitionStore, ...]:
        """At the first opening: each store gets an id, then the map is made of them."""
        for partition in self._all:
            if not partition.is_in:
                raise open_error(partition)
            if identities[partition.place].store is None:
                await self._give_id(partition)
                identities[partition.place] = await partition.open()
        stores = known_map(self._names, identities)
        if stores is None:
            check_distinct(self._names, identities)
            stores = tuple(
                PartitionStore(identities[each.place].store or "", each.name) for each in self._all
            )
        return stores

    async def _give_id(self, partition: Partition) -> None:
        """Existing jobs would not be in their home partitions, so the store must be empty."""
        if len(self._all) > 1 and (await partition.engine.find(JobFilter(), limit=1)).jobs:
            raise ConfigError(
                f"{partition.name} already holds jobs: partitions must start as empty stores"
            )
        # The first process wins; the others read its id.
        await partition.engine.save([store_record(str(uuid_utils.uuid7()))])


def open_error(partition: Partition) -> HoldfastError:
    """The error for a partition that could not be opened when the store was first opened."""
    error = partition.health.error
    if isinstance(error, UsageError):
        return error
    return EngineUnavailable(
        f"the first opening needs all partitions, and {partition.name} is out ({error}): try"
        " again later"
    )
