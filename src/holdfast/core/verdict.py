"""How a lease ends (Verdict), and what a person may do to jobs without one (Amendment)."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from holdfast.core.model import Failure, Lease, NewJob, Note, Reason, Reroute


class Complete(msgspec.Struct, frozen=True, tag="complete", gc=False):
    """Done. The follow-up jobs `then` are enqueued in the same transaction."""

    result: bytes | None = None
    then: tuple[NewJob, ...] = ()


class Retry(msgspec.Struct, frozen=True, tag="retry"):
    """Run it again after `delay_ms`."""

    delay_ms: int = 0
    failure: Failure | None = None


class Bury(msgspec.Struct, frozen=True, tag="bury"):
    """It cannot be done: a dead letter, or a job of the queue's dead_queue."""

    reason: Reason = Reason.EXPLICIT
    failure: Failure | None = None


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Not now, through no fault of the job: the attempt is given back. With `alone` its next
    attempts run in a process of their own, because this one shared a process that died. One that
    was `unstarted` had none: that is given back however often, and not counted."""

    text: str = ""
    delay_ms: int = 0
    alone: bool = False
    unstarted: bool = False


class Forward(msgspec.Struct, frozen=True, tag="forward"):
    """Hand the job on to another queue, where it starts afresh."""

    queue: str


Verdict: TypeAlias = Complete | Retry | Bury | Release | Forward


class Settlement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    lease: Lease
    verdict: Verdict
    note: Note | None = None


class Outcome(StrEnum):
    """SETTLED also answers a repeat of what was settled before. LOST: the token is no longer the
    job's. REFUSED: the verdict names a queue that does not exist or has a value out of bounds
    (`checks.check_settlement`); the lease goes on."""

    SETTLED = "settled"
    LOST = "lost"
    REFUSED = "refused"


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """A waiting job is cancelled; a leased one is asked to stop at its next renewal."""

    by: str = ""
    text: str = ""


class Redrive(msgspec.Struct, frozen=True, kw_only=True, tag="redrive"):
    """Put dead, cancelled or done jobs back to work, with their attempts at zero."""

    by: str = ""
    text: str = ""
    delay_ms: int = 0


class BuryWaiting(msgspec.Struct, frozen=True, kw_only=True, tag="bury"):
    """A waiting job becomes a dead letter."""

    by: str = ""
    reason: Reason = Reason.EXPLICIT
    failure: Failure | None = None


class Edit(msgspec.Struct, frozen=True, kw_only=True, tag="edit"):
    """Change a waiting or dead job; None leaves a field as it is. A new payload forgets the
    progress and the checkpoint that runs of the old one left."""

    by: str = ""
    text: str = ""
    payload: bytes | None = None
    content_type: str | None = None
    priority: int | None = None
    expires_ms: int | None = None
    labels: dict[str, str] | None = None
    headers: dict[str, str] | None = None


class Move(msgspec.Struct, frozen=True, kw_only=True, tag="move"):
    """Put waiting or dead jobs in another queue, state and attempts unchanged. `text` says why.
    With `expires_ms` they have so long there; `reroute` is what is left of that policy."""

    queue: str
    by: str = ""
    text: str = ""
    expires_ms: int | None = None
    reroute: Reroute | None = None


class Retime(msgspec.Struct, frozen=True, kw_only=True, tag="retime"):
    """A waiting job becomes due so long from now."""

    delay_ms: int
    by: str = ""


class Expedite(msgspec.Struct, frozen=True, kw_only=True, tag="expedite"):
    """A waiting job becomes due now, at the highest priority."""

    by: str = ""


class Delete(msgspec.Struct, frozen=True, kw_only=True, tag="delete"):
    """Remove waiting and finished jobs; with `force` leased ones too, whose leases are lost."""

    force: bool = False


Amendment: TypeAlias = Cancel | Redrive | BuryWaiting | Edit | Move | Retime | Expedite | Delete
