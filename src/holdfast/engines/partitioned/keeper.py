"""Keeps the partitions: opens them, shuts out what fails, asks it again, lets it back in.

A partition comes back only after a clean lifecycle read and a write, as the store that the map
says, with the queues' settings of today. It decides nothing about jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from holdfast.engines.base import Engine
from holdfast.engines.partitioned import health, settings
from holdfast.engines.partitioned.map import Identity
from holdfast.engines.partitioned.membership import Membership
from holdfast.engines.partitioned.partition import Partition, PartitionView
from holdfast.errors import EngineClosed, EngineError, EngineUnavailable, HoldfastError

_log = logging.getLogger("holdfast.partitioned")
T = TypeVar("T")
Pause = Callable[[float], Awaitable[object]]


class Keeper:
    """`pause` waits between two tries at a partition that is out; tests wait otherwise."""

    def __init__(self, partitions: Sequence[Partition], *, pause: Pause = asyncio.sleep) -> None:
        self.all = tuple(partitions)
        self._pause = pause
        self._membership = Membership(self.all)
        self._tries: dict[int, asyncio.Task[None]] = {}
        self._closed = False
        self.changed = asyncio.Event()
        """Set, and replaced, when a partition comes in or goes out."""

    @property
    def usable(self) -> list[Partition]:
        return [each for each in self.all if each.is_in]

    @property
    def whole(self) -> bool:
        return all(each.is_in for each in self.all)

    async def open(self) -> None:
        """What cannot be opened is shut out; without any partition nothing can be done."""
        self._closed = False
        for partition in self.all:
            partition.health = health.Health()
        try:
            identities = await self._open_each()
            for place, error in (await self._membership.agree(identities)).items():
                await self.all[place].close()
                self.shut_out(self.all[place], error)
            await self._each(self.usable, lambda each: each.read_lifecycle())
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
        """Those in use; EngineUnavailable if there is none."""
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
        """What fails there shuts the partition out, and is raised."""
        try:
            return await call(partition.engine)
        except EngineClosed:
            raise
        except EngineError as error:
            self.shut_out(partition, error)
            raise

    async def ask_all(self, call: Callable[[Engine], Awaitable[T]]) -> dict[int, T]:
        """The answers of those in use, by place; at least one."""
        return await self.ask_each((each, call) for each in self.some())

    async def ask_each(
        self, calls: Iterable[tuple[Partition, Callable[[Engine], Awaitable[T]]]]
    ) -> dict[int, T]:
        """All at once. Who fails is shut out and left out; if all do the first failure is
        raised. A call that is wrong is wrong everywhere."""
        asked = list(calls)
        answers = await asyncio.gather(
            *(self.ask(partition, call) for partition, call in asked), return_exceptions=True
        )
        found: dict[int, T] = {}
        failures: list[EngineError] = []
        for (partition, _), answer in zip(asked, answers, strict=True):
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
        partition.health = health.after_failure(partition.health, error, _now_ms())
        trying = self._tries.get(partition.place)
        if not self._closed and (trying is None or trying.done()):
            # A call that fails when all is closed must not open anything again.
            self._tries[partition.place] = asyncio.create_task(self._try_again(partition))
        self._ring()

    async def _try_again(self, partition: Partition) -> None:
        while not partition.is_in:
            wait_s = health.retry_ms(partition.health) / 1000
            await self._pause(wait_s * random.uniform(0.5, 1.0))
            try:
                await self._let_in(partition)
            except HoldfastError as error:
                partition.health = health.after_failure(partition.health, error, _now_ms())
            except Exception as error:  # noqa: BLE001 (who gives up leaves it out for ever)
                _log.exception("partition %s could not be opened", partition.name)
                unknown = EngineUnavailable(f"{type(error).__name__}: {error}")
                partition.health = health.after_failure(partition.health, unknown, _now_ms())

    async def _let_in(self, partition: Partition) -> None:
        await self._reopen(partition)
        await partition.read_lifecycle()
        await partition.write()
        await settings.catch_up(partition, self.usable)
        partition.health = health.after_clean_read(partition.health, _now_ms())
        # What was said of a queue between those two was said without it.
        await settings.catch_up(partition, self.usable)
        _log.warning("partition %s is back in use", partition.name)
        self._ring()

    async def _reopen(self, partition: Partition) -> None:
        """The engine may have come to itself; but also to another store, in the place of the one
        that was there."""
        try:
            found = await partition.reopen()
        except EngineError:
            with contextlib.suppress(EngineError):
                await partition.close()
            found = await partition.reopen()
        try:
            await self._membership.confirm(partition, found)
        except BaseException:
            with contextlib.suppress(EngineError):
                await partition.close()
            raise

    async def _open_each(self) -> dict[int, Identity]:
        answers = await asyncio.gather(*(each.open() for each in self.all), return_exceptions=True)
        identities: dict[int, Identity] = {}
        for partition, answer in zip(self.all, answers, strict=True):
            if isinstance(answer, HoldfastError):
                self.shut_out(partition, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                identities[partition.place] = answer
        if not identities:
            raise self.all[0].health.error or self.all[0].unavailable()
        return identities

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
