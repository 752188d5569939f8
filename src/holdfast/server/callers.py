"""Who asks, and what they may do."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from holdfast.core.workers import QUEUE_PREFIX


class Scope(StrEnum):
    """What a caller may do; each of the first ones is part of those below it. `run-commands` is
    beside them: jobs and schedules that run a command line or send a request from where the
    workers are. `known` has whoever has any of them."""

    KNOWN = "known"
    PRODUCE = "produce"
    CONSUME = "consume"
    OPERATE = "operate"
    ADMIN = "admin"
    RUN_COMMANDS = "run-commands"


GIVEN = tuple(scope for scope in Scope if scope is not Scope.KNOWN)
"""Those that a token can be made with."""

_IMPLIED: dict[str, tuple[str, ...]] = {
    Scope.OPERATE: (Scope.PRODUCE, Scope.CONSUME),
    Scope.ADMIN: (Scope.OPERATE, Scope.PRODUCE, Scope.CONSUME),
}


def implied(scopes: Iterable[str]) -> frozenset[str]:
    """With all that they are part of; what this version does not know gives nothing."""
    known = [scope for scope in scopes if scope in GIVEN]
    more = [each for scope in known for each in (Scope.KNOWN, *_IMPLIED.get(scope, ()))]
    return frozenset((*known, *more))


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """`scopes` are with what they imply. With a `prefix` only queues that begin with it are there,
    and the own queues of workers whose names do. `token` is the id of theirs, if they have one;
    with one for `everywhere` they chose the namespace."""

    name: str
    namespace: str = "default"
    scopes: frozenset[str] = frozenset()
    prefix: str = ""
    token: str = ""
    everywhere: bool = False

    def may(self, scope: str) -> bool:
        return scope in self.scopes

    def owns(self, queue: str) -> bool:
        if queue.startswith(QUEUE_PREFIX) and not self.prefix.startswith(QUEUE_PREFIX):
            # It is the worker's name that counts: else "w" would be the prefix of all workers.
            return queue.startswith(QUEUE_PREFIX + self.prefix)
        return queue.startswith(self.prefix)


ANYBODY = Caller(name="local", scopes=implied([Scope.ADMIN]))
"""On a loopback address without tokens everybody may do everything but run commands."""

NOBODY = Caller(name="nobody")
"""Who has shown no token where one is needed: what is for everybody is for them too."""
