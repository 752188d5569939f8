"""A lease that waits, and what it does when the server cannot be reached meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from holdfast.core.model import Lease, LeaseRequest
from holdfast.engines.postgres.leasing import Outlook
from holdfast.errors import EngineClosed, EngineError, EngineUnavailable, OutcomeUnknown


class Patience:
    """A waiting lease goes on waiting through an outage; what it met last is told at the end."""

    def __init__(
        self,
        lease: Callable[[LeaseRequest], Awaitable[tuple[list[Lease], int | None]]],
        linger: Callable[[LeaseRequest, int | None], Awaitable[Outlook]],
    ) -> None:
        self._lease = lease
        self._linger = linger
        self._seen_at: int | None = None
        self.failure: EngineError | None = None

    async def attempt(self, request: LeaseRequest) -> tuple[list[Lease], int | None]:
        try:
            leases, _ = await self._lease(request)
            next_ms = None
            if not leases:
                # What becomes due between the look and this counts, too: that look came after the
                # outlook before. The first has none before it, but a look after it.
                outlook = await self._linger(request, self._seen_at)
                next_ms = outlook.next_ms
                if outlook.is_fresh or self._seen_at is None:
                    leases, _ = await self._lease(request)
                self._seen_at = outlook.at
        except (EngineUnavailable, OutcomeUnknown, EngineClosed) as error:
            self.failure = error
            return [], None
        self.failure = None
        return leases, next_ms
