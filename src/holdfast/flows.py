"""What an application says about the flow of jobs: batches, limits, and how they stand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from holdfast.batches import Batch, enqueue_batch
from holdfast.core import limits
from holdfast.core.flow import Flow, Limit, Waits
from holdfast.core.model import AfterOn, NewJob, Queue
from holdfast.engines.base import Engine
from holdfast.limiting import remove_limit, set_limit
from holdfast.options import expected
from holdfast.rates import RateText, to_rate

if TYPE_CHECKING:
    from holdfast.app import Holdfast


class Flowing:
    """Those verbs, of an application."""

    @property
    def engine(self) -> Engine:
        raise NotImplementedError

    async def batch(
        self, jobs: Iterable[NewJob], *, then: NewJob, after_on: AfterOn = "either"
    ) -> Batch:
        """Enqueue up to 10,000 jobs, and one more that starts when all of them have ended."""
        expected("then", then, NewJob)
        return await enqueue_batch(cast("Holdfast", self), jobs, then, after_on)

    async def limit(
        self,
        queue: str,
        name: str,
        *,
        concurrency: int | None = None,
        rate: RateText | None = None,
        key: str = "",
        task: str | None = None,
    ) -> Queue:
        """Bound the jobs of a queue, or of one task in it: how many at a time, how many starts.

        With a `key` template such as "{tenant}" each key has its own bound. Queues whose limits
        have the same name share its slots. It counts at once, also for jobs that wait already.
        """
        wanted = Limit(
            name=expected("name", name, str),
            task=task,
            key=expected("key", key, str),
            concurrency=concurrency,
            rate=None if rate is None else to_rate("rate", rate),
        )
        return await set_limit(self.engine, expected("queue", queue, str), wanted)

    async def unlimit(self, queue: str, name: str) -> Queue:
        """Take a limit away; one that is not there is no error."""
        return await remove_limit(self.engine, expected("queue", queue, str), name)

    async def flow(self, queue: str, *, limit: int = limits.PAGE_MAX) -> Flow:
        """How the limits and the tenants of a queue stand, and who holds its slots."""
        return await self.engine.flow(expected("queue", queue, str), limit=limit)

    async def waits(self, id: str) -> Waits | None:
        """What a waiting job waits for, beside its time; None if no such job waits."""
        return await self.engine.waits(expected("id", id, str))
