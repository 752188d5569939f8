"""A twin for engines that keep the order of each partition, and not over all of them.

Which job comes first is then the engine's choice: the reference must allow it, and an answer that
is short of its limit must leave nothing that the reference would have given.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import TypeVar

from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.model import Job, Lease, LeaseRequest
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import UsageError
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin

T = TypeVar("T", Job, Lease)


class FreeTwin(Twin):
    async def lease(self, request: LeaseRequest) -> list[Lease]:
        try:
            mine = await self.engine.lease(request)
        except UsageError:
            return await super().lease(request)
        ids = tuple(lease.id for lease in mine)
        asked = replace(request, wait_ms=0)
        if not request.ids and not await self._would_lease(asked, ids):
            asked = replace(asked, queues=(), ids=ids, limit=limits.BATCH_MAX)
        theirs = await self.reference.lease(asked) if ids else []
        assert [lease.id for lease in theirs] == list(ids), "the reference would not give them"
        if len(mine) < request.limit:
            left = await self.reference.lease(replace(request, wait_ms=0))
            assert not left, "the reference would have given more"
        for lease, twin in zip(mine, theirs, strict=True):
            assert (lease.id, lease.token) not in self._pairs, "a token came twice"
            self._pairs[lease.id, lease.token] = twin.token
            number = len(self._numbers)
            self._numbers[lease.id, lease.token] = number
            self._numbers[lease.id, -twin.token] = number
        self._agree_on_leases(mine, theirs)
        return mine

    async def _would_lease(self, request: LeaseRequest, ids: tuple[str, ...]) -> bool:
        """Only a whole call takes several of a group together. A copy is asked, because what the
        reference has leased it cannot take back."""
        assert isinstance(self.reference, MemoryEngine)
        views = await self.reference.queues(counts=False)
        if all(view.queue.group_batch == 1 for view in views):
            return False
        clock = self.reference._clock
        trial = deepcopy(self.reference, {id(clock): clock})
        return tuple(lease.id for lease in await trial.lease(request)) == ids

    def _agree_on_leases(
        self, mine: Sequence[Lease | None], theirs: Sequence[Lease | None]
    ) -> None:
        super()._agree_on_leases(_by_id(mine), _by_id(theirs))

    def _agree_on_jobs(self, mine: Sequence[Job | None], theirs: Sequence[Job | None]) -> None:
        super()._agree_on_jobs(_by_id(mine), _by_id(theirs))


def _by_id(found: Sequence[T | None]) -> list[T | None]:
    """Answers to questions are in the order of the questions, and may be None; lists are not."""
    if None in found:
        return list(found)
    return sorted(found, key=lambda each: "" if each is None else each.id)


class FreeHarness(Harness):
    async def twin(self) -> Twin:
        whole = await super().twin()
        return FreeTwin(whole.engine, whole.reference)
