"""Messages of other programs that cannot become jobs are kept as dead letters with the reason
`rejected`, in a queue of their own: each byte and each header.

A job is bounded, a message is not. A body that is too large becomes several dead letters, and
headers that no job can have become the payload of one more.

A dead letter is enqueued as a parked job, and then buried. A parked job is never due, and expires
soon: if the process is killed in between, no worker runs it, and the reaper makes it a dead letter.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds, checks
from holdfast.core.model import (
    Failure,
    JobFilter,
    NewJob,
    Queue,
    Reason,
    Receipt,
    State,
    Status,
    WaitingKind,
)
from holdfast.core.verdict import BuryWaiting
from holdfast.engines.base import Engine, Traits
from holdfast.errors import UnknownQueue, UsageError
from holdfast.ops.jobs.bulk import enqueue_batches

REJECTED_QUEUE: Final = "rejected"
REJECTED_TASK: Final = "rejected"
REJECTED_ID_MAX: Final = 117
"""The longest id of a rejection: those of its further parts are longer."""

_PART = re.compile(r"\.part[0-9]+\Z")
_HEADERS_TYPE = "application/vnd.holdfast.headers+json"
_UNTYPED = "application/octet-stream"
_PARKED_MS = bounds.MINUTE_MS


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """Input of another program that cannot become a job, and why. `id` is that of its dead letter,
    at most `REJECTED_ID_MAX` characters: a repetition with the same id adds nothing. `by` is the
    gate or the service that rejects it; `trace` holds further details."""

    id: str
    why: str
    by: str
    trace: str = ""
    body: bytes = b""
    content_type: str = ""
    headers: dict[str, str] = {}


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


def is_part_id(id: str) -> bool:
    """Whether a further part of a rejection may have this id: no message may take it."""
    return _PART.search(id) is not None


async def keep_rejected(engine: Engine, rejections: Sequence[Rejection]) -> None:
    """Store each rejection as a dead letter, durable on return. Killed in the middle or called
    twice, the next call with the same ids completes it. Raises if one could not be stored."""
    part_max = min(bounds.QUEUE_PAYLOAD_MAX, engine.traits.payload_max)
    ids: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)

    def jobs() -> Iterator[NewJob]:
        for rejection in rejections:
            for job in _parts(rejection, part_max):
                ids[rejection.by, rejection.why, rejection.trace].append(job.id)
                yield parked(job, engine.traits, _PARKED_MS)

    for batch in enqueue_batches(jobs()):
        await _enqueue(engine, batch)
    for (by, why, trace), own in ids.items():
        failure = Failure(type="RejectedMessage", message=why, trace=trace)
        amendment = BuryWaiting(by=by, reason=Reason.REJECTED, failure=failure)
        await bury_parked(engine, REJECTED_QUEUE, own, amendment)


async def _enqueue(engine: Engine, jobs: Sequence[NewJob]) -> None:
    receipts = await engine.enqueue(jobs)
    if any(_lacks_queue(receipt) for receipt in receipts):
        await engine.declare(Queue(name=REJECTED_QUEUE), instead_of=None)
        receipts = await engine.enqueue(jobs)
    for receipt in receipts:
        checks.accepted(receipt)


def _lacks_queue(receipt: Receipt) -> bool:
    return receipt.status is Status.REFUSED and receipt.code == UnknownQueue.code


def _parts(rejection: Rejection, part_max: int) -> Iterator[NewJob]:
    """The jobs that together hold the rejection: the body, and its headers if they do not fit."""
    body, headers = rejection.body, dict(rejection.headers)
    body_type = rejection.content_type or _UNTYPED
    parts = [(body[:part_max], body_type)]
    parts += [(body[at : at + part_max], body_type) for at in range(part_max, len(body), part_max)]
    if not _fits(body_type, headers):
        apart = json.dumps({"content_type": rejection.content_type, "headers": headers}).encode()
        headers = {}
        parts = [(part, _UNTYPED) for part, _ in parts]
        starts = range(0, len(apart), part_max)
        parts += [(apart[at : at + part_max], _HEADERS_TYPE) for at in starts]
    for number, (payload, content_type) in enumerate(parts, 1):
        label = {"part": f"{number} of {len(parts)}"} if len(parts) > 1 else {}
        yield NewJob(
            id=rejection.id if number == 1 else f"{rejection.id}.part{number}",
            task=REJECTED_TASK,
            queue=REJECTED_QUEUE,
            payload=payload,
            content_type=content_type,
            headers=headers if number == 1 else {},
            labels={"by": rejection.by, **label},
        )


def _fits(content_type: str, headers: dict[str, str]) -> bool:
    try:
        checks.check_pairs("headers", headers)
    except UsageError:
        return False
    return bounds.CONTENT_TYPE.match(content_type) is not None
