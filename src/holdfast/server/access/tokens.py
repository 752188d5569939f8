"""Tokens and sessions → callers: the authentication of requests.

Tokens are cached for at most a second, and all are read together. A request with an unknown token
waits for the next of at most ten reads a second: the token may be new. While a part of the store is
unreachable, the last known tokens in it stay valid.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable

from msgspec.structs import replace

from holdfast.engines.base import Engine
from holdfast.errors import EngineUnavailable, HoldfastError, Unauthenticated
from holdfast.ops.records import scan
from holdfast.ops.tokens import (
    EVERYWHERE,
    SESSION_FORM,
    TOKEN_FORM,
    TOKEN_KIND,
    TOKENS,
    Token,
    TokenRequest,
    Tokens,
    hash_secret,
    is_access_key_id,
    is_for,
)
from holdfast.server.access.caller import Caller, with_implied
from holdfast.server.access.quotas import SharedRead
from holdfast.server.access.sigv4 import unknown_key

_UNKNOWN_PAUSE_S = 0.1
_NO_HASH = hashlib.sha256(secrets.token_bytes(32)).digest()

Authenticated = tuple[Token, Caller]


class TokenAuthenticator(Tokens):
    """Authenticates callers by the tokens of one store. A revoked token is refused here at once,
    and on other servers within a second.
    """

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
        """Tokens that were revoked here, even if the store could not be updated."""

    async def create(self, wanted: TokenRequest) -> tuple[str, Token]:
        made = await super().create(wanted)
        self._cache.forget()
        return made

    async def revoke(self, named: str, *, namespace: str = EVERYWHERE) -> Token:
        token = await super().revoke(named, namespace=namespace)
        self._revoked.add(token.id)
        self._cache.forget()
        return token

    async def create_session(self, parent: Token) -> tuple[str, Token]:
        made = await super().create_session(parent)
        self._cache.forget()
        return made

    async def end_session(self, id: str) -> None:
        self._revoked.add(id)
        self._cache.forget()
        await super().end_session(id)
        self._cache.forget()

    async def authenticate(self, text: str) -> Caller:
        """The caller with this token, which is not a session. The text of Unauthenticated does not
        reveal what was wrong with it.
        """
        return (await self.verify(text))[1]

    async def authenticate_session(self, text: str) -> Caller:
        """The caller with this session. Raises as `authenticate`."""
        return (await self.verify(text, SESSION_FORM, is_session=True))[1]

    async def verify(
        self, text: str, form_of: re.Pattern[str] = TOKEN_FORM, *, is_session: bool = False
    ) -> Authenticated:
        """The record of a token or session, and the caller with it. Raises as `authenticate`."""
        form = form_of.fullmatch(text)
        token_id, secret = form.groups() if form else ("", text)
        known = await self._authenticated(token_id) if form else None
        may_exist = form is not None and token_id not in self._revoked
        if known is None and may_exist and not self._is_whole():
            raise EngineUnavailable(
                "a part of the store is unreachable, and this token may be in it"
            )
        expected = bytes.fromhex(known[0].sha256) if known else _NO_HASH
        is_right = hmac.compare_digest(hash_secret(secret), expected)
        if not is_right or known is None or not self._is_valid(known[0]):
            raise Unauthenticated("the token is unknown, expired or revoked")
        if bool(known[0].parent) is not is_session:
            raise Unauthenticated("the token is unknown, expired or revoked")
        return known

    async def find_access_key(self, key_id: str) -> tuple[str, Caller]:
        """The secret of an access key, and the caller that it authenticates. SignatureRefused if
        the key is unknown, expired or revoked.
        """
        known = await self._authenticated(key_id) if is_access_key_id(key_id) else None
        if known is None:
            may_exist = is_access_key_id(key_id) and key_id not in self._revoked
            if may_exist and not self._is_whole():
                raise EngineUnavailable(
                    "a part of the store is unreachable, and this access key may be in it"
                )
            raise unknown_key()
        token, caller = known
        if not token.secret or not self._is_valid(token):
            raise unknown_key()
        return token.secret, caller

    async def _authenticated(self, id: str) -> Authenticated | None:
        """The token with this id. It may have been created since the last read, but unknown tokens
        must not cause a read with each request."""
        known = (await self._cache.get()).get(id)
        return known or (await self._cache.get_current(_UNKNOWN_PAUSE_S)).get(id)

    async def require(self, id: str) -> None:
        """Raise unless the token that authenticated a long request is still valid."""
        known = (await self._cache.get()).get(id)
        if known is None or not self._is_valid(known[0]):
            raise Unauthenticated("the token expired or was revoked during the request")

    async def expires_at(self, id: str) -> int | None:
        """When a valid token or session expires, in milliseconds since 1970; None if never."""
        known = (await self._cache.get()).get(id)
        return None if known is None else known[0].expires_at

    async def namespaces(self) -> set[str]:
        """The namespaces that tokens are for."""
        known = await self._cache.get()
        return {token.namespace for token, _ in known.values()} - {EVERYWHERE}

    def _missing(self, named: str, namespace: str) -> HoldfastError:
        """Handle a token that was not found. If it may be in an unreachable part, this server
        refuses it from now on.
        """
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
            "a part of the store is unreachable, and the token may be in it: this server refuses"
            " it from now on, but others may not; revoke it again later"
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
        tokens = {key: pair for key, (_, pair) in values.items() if key not in self._revoked}
        return {key: found for key, pair in tokens.items() if (found := _with_parent(pair, tokens))}


def _with_parent(pair: Authenticated, tokens: dict[str, Authenticated]) -> Authenticated | None:
    """A token as it is; a session with the rights of its parent, or None if that is gone."""
    session = pair[0]
    if not session.parent:
        return pair
    parent, caller = tokens.get(session.parent, (None, None))
    if parent is None or caller is None or parent.parent:
        return None
    ends = [each for each in (session.expires_at, parent.expires_at) if each is not None]
    return replace(session, expires_at=min(ends)), replace(caller, session=session.id)


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
