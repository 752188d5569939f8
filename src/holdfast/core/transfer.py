"""Transfer of complete jobs from one store to another, and checksums that verify it.

Two copies of a job are equal if they differ only in the numbers that each store assigns: arrival,
version, token and deadline.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from holdfast.core import checks
from holdfast.core.model import Failure, Job, Receipt, State
from holdfast.errors import InvalidJob

_ENCODER = msgspec.json.Encoder(order="deterministic")
_MODULUS = 1 << 128


class Whole(msgspec.Struct, frozen=True, gc=False):
    """A complete job, and the parents that it still waits for."""

    job: Job
    awaits: tuple[str, ...] = ()


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """A page of jobs in order of arrival; continue from `after` until it is None."""

    wholes: tuple[Whole, ...]
    after: int | None


class HeldKey(msgspec.Struct, frozen=True, gc=False):
    """A once-only key, the job that holds it and the end of its window."""

    queue: str
    key: str
    id: str
    until_at: int


class Mover(Protocol):
    """Raw export and import of jobs and keys, without the rules that `Engine` applies."""

    async def jobs(self, *, after: int, limit: int, bytes_max: int) -> Stretch:
        """At most `limit` jobs; the page ends once they exceed `bytes_max` together."""

    async def adopt(self, wholes: Sequence[Whole]) -> list[Receipt]:
        """Insert jobs unchanged, in this order of arrival. A known id is a DUPLICATE and stays
        unchanged; a leased job, or one whose queue is unknown, is REFUSED."""

    async def keys(self, queue: str, *, after: str, limit: int) -> list[HeldKey]:
        """The held keys of one queue, ordered by key."""

    async def hold(self, keys: Sequence[HeldKey]) -> None:
        """Insert held keys unchanged; their queues exist."""


def refusal(job: Job, *, is_known_queue: bool) -> Receipt | None:
    """The refusal of a job that cannot be imported; None if it can."""
    if not is_known_queue:
        return checks.refusal(job.id, checks.unknown_queue(job.queue))
    if job.state is State.LEASED:
        error = InvalidJob(f"job {job.id} is leased: it can be moved once its lease has ended")
        return checks.refusal(job.id, error)
    return None


def bytes_of(job: Job) -> int:
    """The approximate size of a job in memory."""
    parts = (job.payload, job.result, job.output, job.checkpoint)
    texts = sum(
        len(event.text) + (_bytes_of(event.failure) if event.failure else 0) for event in job.events
    )
    return 1_000 + sum(len(part or b"") for part in parts) + texts + 40 * len(job.after)


def _bytes_of(failure: Failure) -> int:
    return len(failure.message) + len(failure.trace) + len(failure.output)


def unnumbered(job: Job) -> Job:
    """The job without the numbers that its store assigned."""
    return replace(job, seq=0, version=0, token=None, deadline_at=None)


def digest(whole: Whole) -> int:
    """A hash that is equal for copies of the same job in two stores."""
    content = _ENCODER.encode((unnumbered(whole.job), sorted(whole.awaits)))
    return int.from_bytes(hashlib.sha256(content).digest()[:16])


class Sum(msgspec.Struct):
    """A count of jobs and a checksum over their digests that does not depend on their order."""

    count: int = 0
    total: int = 0

    def add(self, digest: int) -> None:
        self.count += 1
        self.total = (self.total + digest) % _MODULUS

    @property
    def checksum(self) -> str:
        return f"{self.total:032x}"
