"""A caller of the server, and the scopes of what it may do."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from holdfast.core.workers import QUEUE_PREFIX


class Scope(StrEnum):
    """A permission. `operate` includes `produce`, `consume` and `observe`, which reads what
    `operate` reads and changes nothing; `admin` includes all four, and each of the five includes
    `known`. `run-commands` is separate and allows nothing alone: it lets
    a caller that may also enqueue or operate use jobs and schedules that run a command line or send
    a request from the worker's machine."""

    KNOWN = "known"
    PRODUCE = "produce"
    CONSUME = "consume"
    OBSERVE = "observe"
    OPERATE = "operate"
    ADMIN = "admin"
    RUN_COMMANDS = "run-commands"


GRANTABLE = tuple(scope for scope in Scope if scope is not Scope.KNOWN)
"""The scopes that a token can be created with."""
_OPERATORS = (Scope.KNOWN, Scope.PRODUCE, Scope.CONSUME, Scope.OBSERVE)
_IMPLIED: dict[str, tuple[str, ...]] = {
    Scope.PRODUCE: (Scope.KNOWN,),
    Scope.CONSUME: (Scope.KNOWN,),
    Scope.OBSERVE: (Scope.KNOWN,),
    Scope.OPERATE: _OPERATORS,
    Scope.ADMIN: (*_OPERATORS, Scope.OPERATE),
}


def with_implied(scopes: Iterable[str]) -> frozenset[str]:
    """The scopes and all scopes they include. A scope that this version does not know is
    ignored.
    """
    known = [scope for scope in scopes if scope in GRANTABLE]
    included = [each for scope in known for each in _IMPLIED.get(scope, ())]
    return frozenset((*known, *included))


def missing_scope(*scopes: Scope) -> str:
    """The text of the error for a caller with none of these scopes."""
    needed = f"the scope {any_scope(scopes)}"
    if Scope.KNOWN in scopes:
        needed = f"one of the scopes {', '.join(_IMPLIED)}"
    return f"this token may not do this: it needs {needed}"


def any_scope(scopes: Iterable[Scope]) -> str:
    """The scopes, of which one is enough, for a message."""
    return " or ".join(f'"{scope.value}"' for scope in scopes)


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """`scopes` contain the implied ones. A caller with a `prefix` can see only queues whose names
    begin with it, and the queues of workers whose names do. `token` is the id of the caller's
    token, or empty. `everywhere` is True for a token that is valid in all namespaces. `session` is
    the id of the session of a caller that signed in with its token, or empty."""

    name: str
    namespace: str = "default"
    scopes: frozenset[str] = frozenset()
    prefix: str = ""
    token: str = ""
    everywhere: bool = False
    session: str = ""

    @property
    def credential(self) -> str:
        """The id of the session or token that must stay valid, or empty."""
        return self.session or self.token

    def may(self, scope: str) -> bool:
        """True if the caller has this scope."""
        return scope in self.scopes

    def may_any(self, scopes: Iterable[str]) -> bool:
        """True if the caller has at least one of these scopes."""
        return not self.scopes.isdisjoint(scopes)

    def owns(self, queue: str) -> bool:
        """True if the queue is within the caller's prefix."""
        if queue.startswith(QUEUE_PREFIX) and not self.prefix.startswith(QUEUE_PREFIX):
            # Compare the worker's name: otherwise the prefix "w" would include every worker queue.
            return queue.startswith(QUEUE_PREFIX + self.prefix)
        return queue.startswith(self.prefix)


LOCAL_CALLER = Caller(name="local", scopes=with_implied([Scope.ADMIN]))
"""A caller on the same machine, where no token is needed: may do everything but run commands."""

ANONYMOUS = Caller(name="nobody")
"""A caller without a token where one is needed: may only call operations without a scope."""
