"""What is known of the leases that clients hold: who settles sends back only an id and a token.

A lease that this server handed out is remembered, without its payload and as long as there is
room; of any other, such as one from before a restart, the job is read again. Either way the
engine is asked with the client's own token, and knows better.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from holdfast.app import Holdfast
from holdfast.core.model import Job, JobFilter, Lease, Queue
from holdfast.engines.base import Engine
from holdfast.reading import queues_of
from holdfast.server.calls import Call

_KEPT_MAX = 20_000
_AT_ONCE = 50
"""Jobs are read with their payloads, so that a thousand could be a gigabyte."""

Held = tuple[str, int]
"""An id and a token."""


class Hand:
    """The leases of one application's clients."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Held, Lease] = OrderedDict()

    def keep(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            self._kept[lease.job.id, lease.token] = replace(lease, job=_bare(lease.job))
        while len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)

    def forget(self, held: Held) -> None:
        self._kept.pop(held, None)

    async def leases(self, engine: Engine, wanted: Iterable[Held]) -> dict[Held, Lease]:
        """Of each, the lease with its job as it was leased, or as `read_leases` finds it."""
        found = {held: self._kept.get(held) for held in wanted}
        read = await read_leases(engine, [held for held, lease in found.items() if not lease])
        return {held: lease or read[held] for held, lease in found.items()}


async def read_leases(engine: Engine, wanted: Sequence[Held]) -> dict[Held, Lease]:
    """Of each, the lease with its job as it is now; of one that cannot be found, with a job that
    only has the name."""
    jobs = await _read(engine, sorted({held[0] for held in wanted}))
    queues = await queues_of(engine) if jobs else {}
    return {held: _of(held, jobs.get(held[0]), queues) for held in wanted}


def hand_of(call: Call) -> Hand:
    return _hands.setdefault(call.app, Hand())


_hands: WeakKeyDictionary[Holdfast, Hand] = WeakKeyDictionary()


async def _read(engine: Engine, ids: list[str]) -> dict[str, Job]:
    jobs: dict[str, Job] = {}
    for start in range(0, len(ids), _AT_ONCE):
        wanted = JobFilter(ids=tuple(ids[start : start + _AT_ONCE]))
        after: int | None = None
        while True:
            page = await engine.find(wanted, limit=_AT_ONCE, after=after)
            jobs |= {job.id: _bare(job) for job in page.jobs}
            after = page.after
            if after is None:
                break
    return jobs


def _of(held: Held, job: Job | None, queues: dict[str, Queue]) -> Lease:
    id_, token = held
    job = job or Job(id=id_, task="-", queue="-")
    queue = queues.get(job.queue) or Queue(name=job.queue)
    return Lease(job=job, token=token, lease_ms=job.overrides.lease_ms or queue.lease_ms)


def _bare(job: Job) -> Job:
    return replace(job, payload=b"", checkpoint=None, labels={}, headers={}, after=job.after[:1])
