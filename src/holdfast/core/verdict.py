"""Verdict: how a lease ends. Amendment: an operator's change to jobs, made without a lease."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from holdfast.core.model import Failure, Lease, NewJob, Note, Reason, Reroute


class Complete(msgspec.Struct, frozen=True, tag="complete", gc=False):
    """The job is done; a dead letter is deleted. The follow-up jobs `then` are enqueued in the same
    transaction."""

    result: bytes | None = None
    then: tuple[NewJob, ...] = ()


class Retry(msgspec.Struct, frozen=True, tag="retry"):
    """Run it again after `delay_ms`."""

    delay_ms: int = 0
    failure: Failure | None = None


class Bury(msgspec.Struct, frozen=True, tag="bury"):
    """Give up: the job becomes a dead letter, in its queue or in the queue's dead_queue."""

    reason: Reason = Reason.EXPLICIT
    failure: Failure | None = None


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Return the job through no fault of its own: the attempt is refunded. With `alone` its next
    attempts run in a process of their own, because this one shared a process that died. An
    `unstarted` job is refunded any number of times; other releases are limited."""

    text: str = ""
    delay_ms: int = 0
    alone: bool = False
    unstarted: bool = False


class Forward(msgspec.Struct, frozen=True, tag="forward"):
    """Move the job to another queue, where it starts with fresh counters."""

    queue: str


Verdict: TypeAlias = Complete | Retry | Bury | Release | Forward


class Settlement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A verdict on a lease, with a last note."""

    lease: Lease
    verdict: Verdict
    note: Note | None = None


class Outcome(StrEnum):
    """The answer to a settlement. SETTLED is also the answer to a repeat. LOST: the token is no
    longer the job's. REFUSED: the verdict names an unknown queue or has a value out of bounds
    (`checks.check_settlement`); the lease continues."""

    SETTLED = "settled"
    LOST = "lost"
    REFUSED = "refused"


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """Cancel a waiting job; ask a leased one to stop at its next renewal."""

    by: str = ""
    text: str = ""


class Redrive(msgspec.Struct, frozen=True, kw_only=True, tag="redrive"):
    """Put dead, cancelled or done jobs back to work, with their attempts at zero. A dead letter in
    a dead queue returns to its origin, if that still exists."""

    by: str = ""
    text: str = ""
    delay_ms: int = 0


class BuryWaiting(msgspec.Struct, frozen=True, kw_only=True, tag="bury"):
    """Turn a waiting job into a dead letter."""

    by: str = ""
    reason: Reason = Reason.EXPLICIT
    failure: Failure | None = None


class Edit(msgspec.Struct, frozen=True, kw_only=True, tag="edit"):
    """Change a waiting or dead job; None keeps a field. A new payload clears the progress and the
    checkpoint of earlier attempts."""

    by: str = ""
    text: str = ""
    payload: bytes | None = None
    content_type: str | None = None
    priority: int | None = None
    expires_ms: int | None = None
    labels: dict[str, str] | None = None
    headers: dict[str, str] | None = None


class Move(msgspec.Struct, frozen=True, kw_only=True, tag="move"):
    """Move waiting or dead jobs to another queue, state and attempts unchanged. `text` is the
    reason; `expires_ms` is their time limit there, `reroute` the remaining reroute policy.
    """

    queue: str
    by: str = ""
    text: str = ""
    expires_ms: int | None = None
    reroute: Reroute | None = None


class Retime(msgspec.Struct, frozen=True, kw_only=True, tag="retime"):
    """Make a waiting job due `delay_ms` from now. `text` is the reason."""

    delay_ms: int
    by: str = ""
    text: str = ""


class Expedite(msgspec.Struct, frozen=True, kw_only=True, tag="expedite"):
    """Make a waiting job due now, at the highest priority. `text` is the reason."""

    by: str = ""
    text: str = ""


class Delete(msgspec.Struct, frozen=True, kw_only=True, tag="delete"):
    """Delete waiting and finished jobs; with `force` also leased ones, whose leases are lost."""

    force: bool = False


Amendment: TypeAlias = Cancel | Redrive | BuryWaiting | Edit | Move | Retime | Expedite | Delete
