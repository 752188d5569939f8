"""Whole jobs on their way from one store to another, and what shows that they arrived.

An engine that can be moved from or to has a method `mover`, beside the verbs of `Engine`. A job
counts as the same if all is the same but its numbers: arrival, version, token and deadline.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from holdfast.core import admission
from holdfast.core.model import Job, Receipt, State
from holdfast.errors import InvalidJob

_ENCODER = msgspec.json.Encoder(order="deterministic")
_MODULUS = 1 << 128


class Whole(msgspec.Struct, frozen=True, gc=False):
    """A job with everything, and the parents whose end it still waits for."""

    job: Job
    awaits: tuple[str, ...] = ()


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """Jobs in the order of their arrival; go on from `after` while that is not None."""

    wholes: tuple[Whole, ...]
    after: int | None


class HeldKey(msgspec.Struct, frozen=True, gc=False):
    """A once-only key: the job that has it, and the end of its window."""

    queue: str
    key: str
    id: str
    until_at: int


class Mover(Protocol):
    """What a store can give and take of jobs as they are, without any law of `Engine` applied."""

    async def jobs(self, *, after: int, limit: int, bytes_max: int) -> Stretch:
        """At most `limit`, and no more once they are `bytes_max` together."""

    async def adopt(self, wholes: Sequence[Whole]) -> list[Receipt]:
        """Write them as they are, in this order of arrival. A known id is a DUPLICATE and stays as
        it is; a leased job, or one whose queue is unknown, is REFUSED."""

    async def keys(self, queue: str, *, after: str, limit: int) -> list[HeldKey]:
        """Of one queue, by key."""

    async def hold(self, keys: Sequence[HeldKey]) -> None:
        """Write them as they are. Their queues exist."""


def refusal(job: Job, *, is_known_queue: bool) -> Receipt | None:
    """Why a job cannot be adopted."""
    if not is_known_queue:
        return admission.refused(job.id, admission.unknown(job.queue))
    if job.state is State.LEASED:
        error = InvalidJob(f"job {job.id} is leased: it can be moved when its lease has ended")
        return admission.refused(job.id, error)
    return None


def bytes_of(job: Job) -> int:
    """About how much room a job takes."""
    parts = (job.payload, job.result, job.output, job.checkpoint)
    texts = sum(
        len(event.text) + (len(event.failure.message + event.failure.trace) if event.failure else 0)
        for event in job.events
    )
    return 1_000 + sum(len(part or b"") for part in parts) + texts + 40 * len(job.after)


def unnumbered(job: Job) -> Job:
    """As it is in any store."""
    return replace(job, seq=0, version=0, token=None, deadline_at=None)


def digest(whole: Whole) -> int:
    """Equal for the same job in two stores."""
    told = _ENCODER.encode((unnumbered(whole.job), sorted(whole.awaits)))
    return int.from_bytes(hashlib.sha256(told).digest()[:16])


class Sum(msgspec.Struct):
    """How many jobs, and a number that all their contents have a part in, in any order."""

    count: int = 0
    total: int = 0

    def add(self, digest: int) -> None:
        self.count += 1
        self.total = (self.total + digest) % _MODULUS

    @property
    def checksum(self) -> str:
        return f"{self.total:032x}"
