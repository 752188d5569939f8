"""A caller of the server, the scopes that say what it may do, and the tokens that authenticate it.

Tokens are cached for at most a second. All are read together, so that an unknown token costs as
much as a known one. While a part of the store is unreachable, the tokens in it are used as they
were last read.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec

from holdfast.core.workers import QUEUE_PREFIX
from holdfast.engines.base import Engine
from holdfast.errors import EngineUnavailable, HoldfastError, Unauthenticated
from holdfast.ops.records import scan
from holdfast.ops.tokens import (
    EVERYWHERE,
    TOKEN_FORM,
    TOKEN_KIND,
    TOKENS,
    Token,
    TokenRequest,
    Tokens,
    hash_secret,
    is_for,
)
from holdfast.server.access.quotas import SharedRead


class Scope(StrEnum):
    """A permission. `operate` includes `produce` and `consume`; `admin` includes all three.
    `run-commands` is separate: it allows jobs and schedules that run a command line or send a
    request from the worker's machine. Every caller with any scope has `known`."""

    KNOWN = "known"
    PRODUCE = "produce"
    CONSUME = "consume"
    OPERATE = "operate"
    ADMIN = "admin"
    RUN_COMMANDS = "run-commands"


GRANTABLE = tuple(scope for scope in Scope if scope is not Scope.KNOWN)
"""The scopes that a token can be created with."""
_IMPLIED: dict[str, tuple[str, ...]] = {
    Scope.OPERATE: (Scope.PRODUCE, Scope.CONSUME),
    Scope.ADMIN: (Scope.OPERATE, Scope.PRODUCE, Scope.CONSUME),
}


def with_implied(scopes: Iterable[str]) -> frozenset[str]:
    """The scopes and all that they include. A scope that this version does not know is ignored."""
    known = [scope for scope in scopes if scope in GRANTABLE]
    included = [each for scope in known for each in (Scope.KNOWN, *_IMPLIED.get(scope, ()))]
    return frozenset((*known, *included))


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """`scopes` contain the implied ones. A caller with a `prefix` can see only queues whose names
    begin with it, and the queues of workers whose names do. `token` is the id of the caller's
    token, or empty. `everywhere` is True for a token that is valid in all namespaces."""

    name: str
    namespace: str = "default"
    scopes: frozenset[str] = frozenset()
    prefix: str = ""
    token: str = ""
    everywhere: bool = False

    def may(self, scope: str) -> bool:
        """True if the caller has this scope."""
        return scope in self.scopes

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

_NO_HASH = hashlib.sha256(secrets.token_bytes(32)).digest()

Authenticated = tuple[Token, Caller]


class TokenAuthenticator(Tokens):
    """The tokens of one store as a server sees them: a revoked one is refused here at once, and on
    other servers within a second."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        wall_ms: Callable[[], int],
        is_whole: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(engine, wall_ms, is_whole)
        self._cache = SharedRead(self._read_all)
        self._values: dict[str, tuple[bytes | None, Authenticated]] = {}
        self._revoked: set[str] = set()
        """Tokens that were revoked here, even if the store could not be written."""

    async def create(self, wanted: TokenRequest) -> tuple[str, Token]:
        made = await super().create(wanted)
        self._cache.forget()
        return made

    async def revoke(self, named: str, *, namespace: str = EVERYWHERE) -> Token:
        token = await super().revoke(named, namespace=namespace)
        self._revoked.add(token.id)
        self._cache.forget()
        return token

    async def authenticate(self, text: str) -> Caller:
        """The caller whose token this is. Unauthenticated does not say what was wrong with it."""
        form = TOKEN_FORM.fullmatch(text)
        token_id, secret = form.groups() if form else ("", text)
        known = (await self._cache.get()).get(token_id)
        may_exist = form is not None and token_id not in self._revoked
        if known is None and may_exist and not self._is_whole():
            raise EngineUnavailable(
                "a part of the store is unreachable, and this token may be in it"
            )
        expected = bytes.fromhex(known[0].sha256) if known else _NO_HASH
        is_right = hmac.compare_digest(hash_secret(secret), expected)
        if not is_right or known is None or not self._is_valid(known[0]):
            raise Unauthenticated("the token is unknown, expired or revoked")
        return known[1]

    async def require(self, id: str) -> None:
        """Raise unless the token that authenticated a long request is still valid."""
        known = (await self._cache.get()).get(id)
        if known is None or not self._is_valid(known[0]):
            raise Unauthenticated("the token expired or was revoked during the request")

    async def namespaces(self) -> set[str]:
        """The namespaces that tokens are for."""
        known = await self._cache.get()
        return {token.namespace for token, _ in known.values()} - {EVERYWHERE}

    def _missing(self, named: str, namespace: str) -> HoldfastError:
        """A token that may only be out of reach is refused here from now on."""
        if self._is_whole():
            return super()._missing(named, namespace)
        tokens = (token for _, (token, _) in self._values.values())
        found = {
            token.id
            for token in tokens
            if is_for(token, namespace) and named in (token.id, token.name)
        }
        self._revoked |= found
        self._cache.forget()
        if not found:
            return super()._missing(named, namespace)
        return EngineUnavailable(
            "a part of the store is unreachable, and the token may be in it: this server refuses "
            "it from now on, and others may not: revoke it again later"
        )

    def _is_valid(self, token: Token) -> bool:
        return token.expires_at is None or self._wall_ms() < token.expires_at

    async def _read_all(self) -> dict[str, Authenticated]:
        """Decode only records that changed since the last read: there may be thousands."""
        before = self._values
        values: dict[str, tuple[bytes | None, Authenticated]] = {}
        was_whole = self._is_whole()
        async for record in scan(self._engine(), TOKEN_KIND):
            value, pair = before.get(record.key, (None, None))
            if value != record.value or pair is None:
                token = TOKENS.decode(record)
                pair = None if token is None else (token, caller_of(token))
            if pair is not None:
                values[record.key] = (record.value, pair)
        if not was_whole or not self._is_whole():
            values = before | values
        self._values = values
        return {key: pair for key, (_, pair) in values.items() if key not in self._revoked}


def caller_of(token: Token) -> Caller:
    """The caller that a valid token authenticates."""
    return Caller(
        name=token.name,
        namespace=token.namespace,
        scopes=with_implied(token.scopes),
        prefix=token.prefix,
        token=token.id,
        everywhere=token.namespace == EVERYWHERE,
    )
