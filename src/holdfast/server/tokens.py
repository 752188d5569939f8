"""Tokens: made, shown once, kept as a hash, looked up for every request, revoked.

They are records of the namespace `default`, whatever namespace they are for. All of them are read
together and kept for at most a second, so that what is not known costs as much as what is. While a
part of the store is away, those that are in it are known as they were.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from holdfast.core import limits
from holdfast.core.model import Record
from holdfast.engines.base import Engine, Saved
from holdfast.errors import (
    ConfigError,
    EngineUnavailable,
    HoldfastError,
    NotFound,
    Unauthenticated,
)
from holdfast.server.callers import GIVEN, Caller, Scope, implied
from holdfast.server.kept import Kept
from holdfast.upkeep.paging import records

KIND = "token"
EVERYWHERE = "*"
TOKENS_MAX = 10_000
EXPIRES_MS = 90 * limits.DAY_MS
FORM = re.compile(r"hf_([0-9a-f]{12})_([0-9a-f]{64})", re.ASCII)

_NAME = re.compile(r"[A-Za-z0-9_.@:/ -]{1,80}\Z", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{0,70}\Z", re.ASCII)
_NO_HASH = hashlib.sha256(secrets.token_bytes(32)).digest()
_ROUNDS_MAX = 20


class Token(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of a token. `sha256` is of its secret, which is nowhere."""

    id: str
    name: str
    sha256: str
    namespace: str = "default"
    scopes: tuple[str, ...] = ()
    prefix: str = ""
    created_at: int = 0
    expires_at: int | None = None
    by: str = ""

    def __repr__(self) -> str:
        return f"<Token {self.id} {self.name!r}>"

    def caller(self) -> Caller:
        return Caller(
            name=self.name,
            namespace=self.namespace,
            scopes=implied(self.scopes),
            prefix=self.prefix,
            token=self.id,
            everywhere=self.namespace == EVERYWHERE,
        )


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A token to be made; `expires_ms` None is never."""

    name: str
    scopes: tuple[str, ...]
    namespace: str = "default"
    prefix: str = ""
    expires_ms: int | None = EXPIRES_MS
    by: str = ""


class Tokens:
    """`engine` is of the namespace `default`; `wall_ms` is the clock that they expire by."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        wall_ms: Callable[[], int],
        is_whole: Callable[[], bool] = lambda: True,
    ) -> None:
        self._engine = engine
        self._wall_ms = wall_ms
        self._is_whole = is_whole
        self._kept = Kept(self._read_all)
        self._values: dict[str, tuple[bytes | None, tuple[Token, Caller]]] = {}
        self._unwanted: set[str] = set()
        """Those that were revoked here, whether the store could be told or not."""

    async def create(self, wanted: Wanted) -> tuple[str, Token]:
        """The token's text, which nobody can have a second time, and what is kept of it."""
        _check(wanted)
        if len(await self.all()) >= TOKENS_MAX:
            raise ConfigError(f"there are {TOKENS_MAX} tokens, which is the most: revoke some")
        secret = secrets.token_hex(32)
        now = self._wall_ms()
        token = Token(
            id=secrets.token_hex(6),
            name=wanted.name,
            sha256=_hash(secret).hex(),
            namespace=wanted.namespace,
            scopes=tuple(scope.value for scope in GIVEN if scope in wanted.scopes),
            prefix=wanted.prefix,
            created_at=now,
            expires_at=None if wanted.expires_ms is None else now + wanted.expires_ms,
            by=wanted.by,
        )
        record = Record(kind=KIND, key=token.id, value=msgspec.json.encode(token))
        if (await self._engine().save([record]))[0] is not Saved.SAVED:
            raise EngineUnavailable("the id of the new token is taken: try again")
        self._kept.forget()
        return f"hf_{token.id}_{secret}", token

    async def revoke(self, named: str, *, namespace: str = EVERYWHERE) -> Token:
        """By its id or, if only one has it, its name; among those of the namespace. At once here,
        within a second on other servers."""
        for _ in range(_ROUNDS_MAX):
            there = [pair async for pair in self._stored() if _is_for(pair[1], namespace)]
            fitting = [pair for pair in there if pair[1].id == named]
            fitting = fitting or [pair for pair in there if pair[1].name == named]
            if len(fitting) > 1:
                ids = ", ".join(token.id for _, token in fitting)
                raise ConfigError(f"several tokens are called {named[:80]!r}: name one of {ids}")
            if not fitting:
                raise self._missing(named, namespace)
            [(record, token)] = fitting
            gone = msgspec.structs.replace(record, value=None)
            if (await self._engine().save([gone]))[0] is Saved.SAVED:
                self._unwanted.add(token.id)
                self._kept.forget()
                return token
        raise EngineUnavailable("the token is being changed by others: try again")

    async def all(self, *, namespace: str = EVERYWHERE) -> list[Token]:
        """Of one namespace or of all, oldest first."""
        found = [token async for _, token in self._stored() if _is_for(token, namespace)]
        return sorted(found, key=lambda token: (token.created_at, token.id))

    async def authenticate(self, text: str) -> Caller:
        """Whose token it is. Unauthenticated says nothing of what was wrong with it."""
        form = FORM.fullmatch(text)
        id_, secret = form.groups() if form else ("", text)
        known = (await self._kept.get()).get(id_)
        maybe = form is not None and id_ not in self._unwanted
        if known is None and maybe and not self._is_whole():
            raise EngineUnavailable("a part of the store is away, perhaps with this token in it")
        expected = bytes.fromhex(known[0].sha256) if known else _NO_HASH
        is_right = hmac.compare_digest(_hash(secret), expected)
        if not is_right or known is None or not self._is_valid(known[0]):
            raise Unauthenticated("the token is not known, has expired or was revoked")
        return known[1]

    async def require(self, id: str) -> None:
        """Raise unless the token that was good at the door is so still."""
        known = (await self._kept.get()).get(id)
        if known is None or not self._is_valid(known[0]):
            raise Unauthenticated("the token has expired or was revoked meanwhile")

    async def namespaces(self) -> set[str]:
        """Those that a token is for."""
        known = await self._kept.get()
        return {token.namespace for token, _ in known.values()} - {EVERYWHERE}

    def _missing(self, named: str, namespace: str) -> HoldfastError:
        """Nobody comes in with it here, if it is only out of reach."""
        if self._is_whole():
            return NotFound("there is no token with this id or name: see the list of tokens")
        tokens = (token for _, (token, _) in self._values.values())
        there = [token for token in tokens if _is_for(token, namespace)]
        fitting = {token.id for token in there if named in (token.id, token.name)}
        self._unwanted |= fitting
        self._kept.forget()
        here = "this server lets it in no more, and others may: " if fitting else ""
        return EngineUnavailable(
            f"a part of the store is away, and the token may be in it: {here}revoke it again later"
        )

    def _is_valid(self, token: Token) -> bool:
        return token.expires_at is None or self._wall_ms() < token.expires_at

    async def _read_all(self) -> dict[str, tuple[Token, Caller]]:
        """What is as it was at the last look is not read anew: they may be thousands."""
        before = self._values
        values: dict[str, tuple[bytes | None, tuple[Token, Caller]]] = {}
        was_whole = self._is_whole()
        async for record in records(self._engine(), KIND):
            value, pair = before.get(record.key, (None, None))
            if value != record.value or pair is None:
                token = _read(record)
                pair = None if token is None else (token, token.caller())
            if pair is not None:
                values[record.key] = (record.value, pair)
        if not was_whole or not self._is_whole():
            values = before | values
        self._values = values
        return {key: pair for key, (_, pair) in values.items() if key not in self._unwanted}

    async def _stored(self) -> AsyncIterator[tuple[Record, Token]]:
        async for record in records(self._engine(), KIND):
            token = _read(record)
            if token is not None:
                yield record, token


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _read(record: Record) -> Token | None:
    """None for what cannot be read, which lets nobody in."""
    try:
        token = msgspec.json.decode(record.value or b"", type=Token)
    except msgspec.DecodeError:
        return None
    is_whole = token.id == record.key and re.fullmatch(r"[0-9a-f]{64}", token.sha256)
    return token if is_whole else None


def _is_for(token: Token, namespace: str) -> bool:
    return namespace in (EVERYWHERE, token.namespace)


def _check(wanted: Wanted) -> None:
    if not _NAME.match(wanted.name) or wanted.name != wanted.name.strip():
        raise ConfigError("a token's name is 1 to 80 of A-Z a-z 0-9 _ . @ : / - and blanks")
    unknown: Sequence[str] = sorted(set(wanted.scopes) - {scope.value for scope in GIVEN})
    if unknown or not wanted.scopes:
        there = ", ".join(GIVEN)
        raise ConfigError(f"scope {', '.join(unknown)[:80]!r} is not known: there are {there}")
    if wanted.namespace != EVERYWHERE and not limits.NAMESPACE.match(wanted.namespace):
        raise ConfigError(f"{wanted.namespace[:80]!r} is no namespace: use A-Z a-z 0-9 _ . - or *")
    if not _PREFIX.match(wanted.prefix):
        raise ConfigError(f"{wanted.prefix[:80]!r} is no prefix of queues: use A-Z a-z 0-9 _ . -")
    if wanted.prefix and Scope.ADMIN in wanted.scopes:
        raise ConfigError("admin is for a whole namespace: leave the prefix out")
    expires_ms = wanted.expires_ms
    if expires_ms is not None and not limits.SECOND_MS <= expires_ms <= limits.DELAY_MS_MAX:
        raise ConfigError(f"a token lasts from a second to 100 years, not {expires_ms} ms")
