"""Jobs that are enqueued only to become dead letters: parked, then buried.

A parked job is never due, and expires soon: if the process is killed before it buries the job, no
worker runs it, and the reaper makes it a dead letter.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import JobFilter, NewJob, State, WaitingKind
from holdfast.core.verdict import BuryWaiting
from holdfast.engines.base import Engine, Traits


def parked(job: NewJob, traits: Traits, expires_ms: int) -> NewJob:
    """The job, parked until it is buried, or for this long."""
    delay_ms = min(bounds.DELAY_MS_MAX, traits.delay_ms_max)
    return replace(job, delay_ms=delay_ms, expires_ms=expires_ms)


async def bury_parked(
    engine: Engine, queue: str, ids: Sequence[str], amendment: BuryWaiting
) -> None:
    """Bury the jobs that are still parked: neither those that an operator put back in the meantime,
    nor a job of another queue with the same id. Repeating it is harmless."""
    for start in range(0, len(ids), bounds.BATCH_MAX):
        wanted = JobFilter(
            ids=tuple(ids[start : start + bounds.BATCH_MAX]),
            queue=queue,
            states=(State.WAITING,),
            waiting=(WaitingKind.SCHEDULED,),
            version=1,
        )
        await engine.amend(wanted, amendment, limit=bounds.BATCH_MAX)
