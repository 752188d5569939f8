"""Everything a worker has in hand: each leased job until its verdict is settled.

A job is first held (leased, not yet given to a child), then in a call, then judged; it is renewed
all the while and leaves only when the engine has answered for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from msgspec.structs import replace

from holdfast.core.model import Job, Lease, Note
from holdfast.core.verdict import Verdict
from holdfast.worker.clock import boot_s

Kind: TypeAlias = Literal["python", "solo", "command", "webhook"]
KINDS: tuple[Kind, ...] = ("python", "solo", "command", "webhook")
"""What a job runs in: a child with others, a child alone, or a process of its own."""
_WAY_S_MAX = 0.2


class Held:
    """One leased job. `call` is the number of the call it is in, 0 before. Its instants are of the
    boot clock: `came_at` is since when it needs nothing but a slot, and `renewed_at` when the store
    was asked for the lease it has now, not when the answer was read: that may have been long
    after."""

    __slots__ = (
        "call",
        "came_at",
        "cancel_told",
        "kind",
        "lease",
        "lost",
        "note",
        "renewed_at",
        "verdict",
    )

    def __init__(self, lease: Lease, asked: float, kind: Kind) -> None:
        self.lease = lease
        self.kind = kind
        self.came_at = boot_s()
        self.renewed_at = asked
        self.call = 0
        self.lost = False
        self.cancel_told = False
        self.note: Note | None = None
        self.verdict: Verdict | None = None

    @property
    def job(self) -> Job:
        return self.lease.job

    def renew_at(self) -> float:
        """At a third of the lease, so that two renewals may fail."""
        return self.renewed_at + self.lease.lease_ms / 3000

    def begin_before(self) -> float:
        """Unless it is renewed, somebody else may have the job soon after this. The last part of a
        lease is left for the way to a handler's first step."""
        lease_s = self.lease.lease_ms / 1000
        return self.renewed_at + lease_s - min(lease_s / 10, _WAY_S_MAX)

    def add_note(self, note: Note) -> None:
        """What was said later wins; what was not said again stays."""
        known = self.note
        if known is None:
            self.note = note
            return
        later = {
            name: value
            for name in ("progress", "checkpoint", "output")
            if (value := getattr(note, name)) is not None
        }
        self.note = replace(known, **later)


class Hand:
    """By token, which is unique: a job that was lost may come back while its first run ends."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], Held] = {}
        self.unjudged: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        """Jobs that run or wait to run: neither judged nor lost."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def unjudged_all(self) -> int:
        return sum(self.unjudged.values())

    def take(
        self, leases: Iterable[Lease], asked: float, kind_of: Callable[[Job], Kind]
    ) -> list[Held]:
        taken = [Held(lease, asked, kind_of(lease.job)) for lease in leases]
        for held in taken:
            self._held[held.lease.job.id, held.lease.token] = held
            self.unjudged[held.kind] += 1
        return taken

    def judge(self, held: Held, verdict: Verdict) -> bool:
        """The first verdict stands, unless the job is lost."""
        if held.lost or held.verdict is not None:
            return False
        held.verdict = verdict
        self.unjudged[held.kind] -= 1
        return True

    def lose(self, held: Held) -> None:
        """Its lease is gone. It stays in hand until its run has ended."""
        if not held.lost and held.verdict is None:
            self.unjudged[held.kind] -= 1
        held.lost = True

    def drop(self, held: Held) -> None:
        self._held.pop((held.lease.job.id, held.lease.token), None)

    def all(self) -> list[Held]:
        return list(self._held.values())

    def knows(self, held: Held) -> bool:
        return (held.lease.job.id, held.lease.token) in self._held
