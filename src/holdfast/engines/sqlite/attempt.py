"""One attempt at leasing: a look without the lock, then the write, in the writer's thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from holdfast.core.model import Lease, LeaseRequest
from holdfast.engines.sqlite import lease
from holdfast.engines.sqlite.scout import Sight
from holdfast.engines.sqlite.store import Store
from holdfast.engines.sqlite.threads import Turn, Worker

_TRIES_MAX = 10
Answer = tuple[list[Lease], Sight]


class Attempt:
    def __init__(
        self,
        store: Store,
        writer: Worker,
        *,
        read: Callable[..., Awaitable[Any]],
        sort: Callable[[int], Awaitable[None]],
        orphan: Callable[[Answer], None],
    ) -> None:
        self._store = store
        self._writer = writer
        self._read = read
        self._sort = sort
        self._orphan = orphan

    async def __call__(self, request: LeaseRequest) -> tuple[list[Lease], int | None]:
        """What was leased and, if nothing, the time until something may be."""
        seen: Sight | None = None
        next_ms: int | None = None
        # Again only if another process was faster, or if much was found to be expired.
        for _ in range(_TRIES_MAX):
            take = partial(self._look_and_take, request, seen)
            leases, sight = await self._writer.call(take, orphan=self._orphan)
            if leases:
                return leases, None
            if sight.unsorted is not None:
                await self._sort(sight.unsorted)
                seen = None
                continue
            next_ms = sight.next_ms
            while sight.go_on is not None:
                # The writer's thread is free for others meanwhile, above all for renewals.
                look = partial(lease.look, request=request, after=sight.go_on)
                sight = await self._read(look)
                next_ms = min(
                    (ms for ms in (next_ms, sight.next_ms) if ms is not None), default=None
                )
            if next_ms != 0:
                break
            seen = sight
        return [], next_ms

    def _look_and_take(self, request: LeaseRequest, seen: Sight | None, turn: Turn) -> Answer:
        look = partial(lease.look, request=request)
        sight = self._store.peek(look) if seen is None else seen
        if sight.next_ms != 0 or sight.unsorted is not None:
            return [], sight
        take = partial(lease.take, request=request, spot=sight.spot)
        leases = self._store.write(take, turn)
        return leases, sight if leases else self._store.peek(look)
