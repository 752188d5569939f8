"""API tokens, access keys for AWS clients and sessions of the dashboard: create, list, revoke them.

Only a hash of a token's secret is stored. An access key is a token whose secret is stored as it is,
because signatures are verified with it. A session is a short-lived token with a parent: it has the
rights of its parent and ends with it. Tokens are records of the namespace `default`, whichever
namespace they are for, and no verb or copy shows them. The server authenticates requests with
them; see `holdfast.server.access`.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import string
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.core import bounds
from holdfast.core.bounds import Instant
from holdfast.engines.base import Engine
from holdfast.errors import ConfigError, EngineUnavailable, HoldfastError, NotFound
from holdfast.notation.durations import show_at, to_ms
from holdfast.ops.records import RecordKind, Stored, check_same
from holdfast.ops.views import at_of

TOKEN_KIND = "token"  # noqa: S105 (the name of a record kind)
EVERYWHERE = "*"
"""The namespace of a token that is valid in all of them."""
SCOPES = ("produce", "consume", "observe", "operate", "admin", "run-commands")
"""The scopes that a token can have."""
TOKENS_MAX = 10_000
EXPIRES_MS = 90 * bounds.DAY_MS
NEVER = "never"
TOKEN_FORM = re.compile(r"hf_([0-9a-f]{12})_([0-9a-f]{64})", re.ASCII)

SESSION_FORM = re.compile(r"hfs_([0-9a-f]{12})_([0-9a-f]{64})", re.ASCII)
SESSION_MS = 12 * bounds.HOUR_MS
"""The lifetime of a session; it ends earlier if its parent expires earlier."""
SESSIONS_MAX = 20
"""Sessions of one token: the oldest gives way to a new one."""
SESSIONS_TOTAL_MAX = 10_000

ACCESS_KEY_FORM = re.compile(r"AKHF[A-Z2-7]{16}", re.ASCII)
"""The id of an access key: in the form of AWS, but recognizably of Holdfast."""

_SECRET_FORM = re.compile(r"[A-Za-z0-9]{40}", re.ASCII)
_SECRET_LETTERS = string.ascii_letters + string.digits
_NAME = re.compile(r"[A-Za-z0-9_.@:/ -]{1,80}\Z", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{0,70}\Z", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_ID = re.compile(r"[0-9a-f]{12}", re.ASCII)


class Token(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored part of a token. `sha256` is the hash of its secret, which is not stored; an
    access key has its `secret` instead. A session has a `parent`, the id of the token that signed
    in, and no scopes of its own."""

    id: str
    name: str
    sha256: str = ""
    secret: str = ""
    namespace: str = "default"
    scopes: tuple[str, ...] = ()
    prefix: str = ""
    created_at: Instant = 0
    expires_at: Instant | None = None
    by: str = ""
    parent: str = ""

    def __repr__(self) -> str:
        return f"<Token {self.id} {self.name!r}>"


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A token to create, or an access key with `aws`; it never expires if `expires_ms` is None."""

    name: str
    scopes: tuple[str, ...]
    namespace: str = "default"
    prefix: str = ""
    expires_ms: int | None = EXPIRES_MS
    by: str = ""
    aws: bool = False


def _check_stored(key: str, token: Token) -> None:
    check_same("id", token.id, key)
    if is_access_key_id(key):
        if token.sha256 or not _SECRET_FORM.fullmatch(token.secret):
            raise ValueError("its secret does not have the form of an access key's secret")
    elif token.secret or not _SHA256.fullmatch(token.sha256):
        raise ValueError("its sha256 is not a hash")
    if token.parent:
        if not _ID.fullmatch(token.parent) or is_access_key_id(key):
            raise ValueError("its parent is not the id of a token")
        if token.scopes or token.expires_at is None:
            raise ValueError("a session has no scopes of its own, and expires")


TOKENS = RecordKind(TOKEN_KIND, Token, check=_check_stored)
"""A token that cannot be read, or contradicts itself, grants no access."""


class Tokens:
    """The tokens of one store. `engine` is that of the namespace `default`, and tokens expire by
    `wall_ms`. `is_whole` is False while a part of the store is unreachable."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        wall_ms: Callable[[], int],
        is_whole: Callable[[], bool] = lambda: True,
    ) -> None:
        self._engine = engine
        self._wall_ms = wall_ms
        self._is_whole = is_whole

    async def create(self, wanted: TokenRequest) -> tuple[str, Token]:
        """Store a new token. Returns its text, or the secret of an access key, which cannot be
        shown again, and its record."""
        check_request(wanted)
        if len(await self.all()) >= TOKENS_MAX:
            raise ConfigError(f"there are {TOKENS_MAX} tokens, the maximum: revoke some")
        id_, secret = new_access_key() if wanted.aws else new_secret()
        now = self._wall_ms()
        token = Token(
            id=id_,
            name=wanted.name,
            sha256="" if wanted.aws else hash_secret(secret).hex(),
            secret=secret if wanted.aws else "",
            namespace=wanted.namespace,
            scopes=tuple(scope for scope in SCOPES if scope in wanted.scopes),
            prefix=wanted.prefix,
            created_at=now,
            expires_at=None if wanted.expires_ms is None else now + wanted.expires_ms,
            by=wanted.by,
        )
        await self._store(token)
        return secret if wanted.aws else f"hf_{id_}_{secret}", token

    async def create_session(self, parent: Token) -> tuple[str, Token]:
        """Store a new session of a token. Returns its text, which cannot be shown again, and its
        record. Sessions that have ended are removed, and so is the oldest one of too many."""
        now = self._wall_ms()
        versions: dict[str, int] = {}
        tokens: dict[str, Token] = {}
        async for stored in TOKENS.read_all(self._engine()):
            if stored.value is not None:
                versions[stored.key], tokens[stored.key] = stored.version, stored.value
        sessions = sorted(
            (each for each in tokens.values() if each.parent),
            key=lambda each: (each.created_at, each.id),
        )
        ended = [each.id for each in sessions if self._has_ended(each, tokens, now)]
        own = [each.id for each in sessions if each.parent == parent.id and each.id not in ended]
        surplus = own[: max(0, len(own) - SESSIONS_MAX + 1)]
        if len(sessions) - len(ended) - len(surplus) >= SESSIONS_TOTAL_MAX:
            raise ConfigError(
                f"there are {SESSIONS_TOTAL_MAX} sessions, the maximum: revoke some tokens"
            )
        removed = [TOKENS.record(id_, None, versions[id_]) for id_ in (*ended, *surplus)]
        for at in range(0, len(removed), bounds.BATCH_MAX):
            # Stale: another server has just removed the same one.
            await self._engine().save(removed[at : at + bounds.BATCH_MAX])
        id_, secret = new_secret()
        ends_at = now + SESSION_MS
        session = Token(
            id=id_,
            name=parent.name,
            sha256=hash_secret(secret).hex(),
            namespace=parent.namespace,
            created_at=now,
            expires_at=ends_at if parent.expires_at is None else min(ends_at, parent.expires_at),
            by=parent.name,
            parent=parent.id,
        )
        await self._store(session)
        return f"hfs_{id_}_{secret}", session

    async def end_session(self, id: str) -> None:
        """Remove a session; nothing happens if it has ended."""
        found = await TOKENS.read(self._engine(), id)
        if found is not None and found.value is not None and found.value.parent:
            await TOKENS.remove(self._engine(), id)

    async def revoke(self, named: str, *, namespace: str = EVERYWHERE) -> Token:
        """Revoke a token of the namespace by its id or by its name, if only one token has it. Its
        sessions end with it."""
        found = await self._find(named, namespace)
        if found is None or found.value is None:
            raise self._missing(named, namespace)

        def remove(token: Token | None) -> None:
            if token is None:
                raise self._missing(named, namespace)

        await TOKENS.update_stored(self._engine(), found.key, remove, known=found)
        return found.value

    async def all(self, *, namespace: str = EVERYWHERE, sessions: bool = False) -> list[Token]:
        """The tokens of one namespace or of all, oldest first; with `sessions` also those that
        have not ended."""
        tokens = await TOKENS.values(self._engine())
        now = self._wall_ms()
        found = [
            token
            for token in tokens.values()
            if is_for(token, namespace)
            and (not token.parent or (sessions and _is_open(token, tokens, now)))
        ]
        return sorted(found, key=lambda token: (token.created_at, token.id))

    async def _store(self, token: Token) -> None:
        if not await TOKENS.create(self._engine(), token.id, token):
            raise EngineUnavailable("the id of the new token is taken: try again")

    def _has_ended(self, session: Token, tokens: Mapping[str, Token], now: int) -> bool:
        """True for a session that can be removed. Its parent may be in a part of the store that is
        unreachable."""
        if self._is_whole():
            return not _is_open(session, tokens, now)
        return _has_expired(session, now)

    async def _find(self, named: str, namespace: str) -> Stored[Token] | None:
        stored = [
            each
            async for each in TOKENS.read_all(self._engine())
            if each.value is not None and is_for(each.value, namespace)
        ]
        found = [each for each in stored if each.value and each.value.id == named]
        found = found or [
            each
            for each in stored
            if each.value and each.value.name == named and not each.value.parent
        ]
        if len(found) > 1:
            ids = ", ".join(each.key for each in found)
            raise ConfigError(f"several tokens have the name {named[:80]!r}: give one of {ids}")
        return found[0] if found else None

    def _missing(self, named: str, namespace: str) -> HoldfastError:
        """The error for a token that was not found."""
        if self._is_whole():
            return NotFound(
                'no token has this id or name: see "holdfast token list" or GET /v1/tokens'
            )
        return EngineUnavailable(
            "a part of the store is unreachable, and the token may be in it: revoke it again later"
        )


def _has_expired(token: Token, now: int) -> bool:
    return token.expires_at is not None and token.expires_at <= now


def _is_open(session: Token, tokens: Mapping[str, Token], now: int) -> bool:
    """True if a session and its parent are valid."""
    parent = tokens.get(session.parent)
    if parent is None or parent.parent or _has_expired(parent, now):
        return False
    return not _has_expired(session, now)


def new_secret() -> tuple[str, str]:
    """The id and the secret of a new token: 256 random bits."""
    return secrets.token_hex(6), secrets.token_hex(32)


def new_access_key() -> tuple[str, str]:
    """The id and the secret of a new access key: 238 random bits in 40 letters and digits."""
    secret = "".join(secrets.choice(_SECRET_LETTERS) for _ in range(40))
    return f"AKHF{base64.b32encode(secrets.token_bytes(10)).decode()}", secret


def access_key_of(token: str) -> tuple[str, str]:
    """The id and the secret of the access key that is derived from a server's local token."""
    material = hashlib.shake_256(f"holdfast access key\n{token}".encode()).digest(90)
    id_ = f"AKHF{base64.b32encode(material[:10]).decode()}"
    # Two bytes for each character make the bias of the remainder negligible.
    numbers = struct.iter_unpack(">H", material[10:])
    return id_, "".join(_SECRET_LETTERS[number % len(_SECRET_LETTERS)] for (number,) in numbers)


def is_access_key_id(id: str) -> bool:
    """True if this can be the id of an access key of Holdfast."""
    return ACCESS_KEY_FORM.fullmatch(id) is not None


def hash_secret(secret: str) -> bytes:
    """The stored form of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def is_for(token: Token, namespace: str) -> bool:
    """True if a request for tokens of `namespace` includes this one."""
    return namespace in (EVERYWHERE, token.namespace)


def check_request(wanted: TokenRequest) -> None:
    """Raise ConfigError unless a token can be created from the request."""
    if not _NAME.match(wanted.name) or wanted.name != wanted.name.strip():
        raise ConfigError(
            "the name of a token must be 1 to 80 characters of A-Z a-z 0-9 _ . @ : / - and spaces"
        )
    unknown: Sequence[str] = sorted(set(wanted.scopes) - set(SCOPES))
    if unknown or not wanted.scopes:
        scopes = ", ".join(SCOPES)
        raise ConfigError(f"unknown scope {', '.join(unknown)[:80]!r}: use {scopes}")
    if wanted.namespace != EVERYWHERE and not bounds.NAMESPACE.match(wanted.namespace):
        raise ConfigError(
            f"namespace {wanted.namespace[:80]!r} is not valid: use A-Z a-z 0-9 _ . - or *"
        )
    if not _PREFIX.match(wanted.prefix):
        raise ConfigError(f"prefix {wanted.prefix[:80]!r} is not valid: use A-Z a-z 0-9 _ . -")
    if wanted.prefix and "admin" in wanted.scopes:
        raise ConfigError('the scope "admin" covers a whole namespace: leave out the prefix')
    expires_ms = wanted.expires_ms
    if expires_ms is not None and not bounds.SECOND_MS <= expires_ms <= bounds.DELAY_MS_MAX:
        raise ConfigError(
            f"the lifetime of a token must be 1 second to 100 years, not {expires_ms} ms"
        )


ScopeName = Annotated[str, Meta(pattern="^(produce|consume|observe|operate|admin|run-commands)$")]
Prefix = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{0,70}$", max_length=70)]
_SCOPES_MAX = 6


class NewToken(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A token to create, or with `aws` an access key for clients of Amazon SQS. `expires` is its
    lifetime, e.g. 90d, or "never". The default namespace is the caller's; "*" is all namespaces.
    """

    name: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9_.@:/-]([A-Za-z0-9_.@:/ -]{0,78}[A-Za-z0-9_.@:/-])?$")
    ]
    scopes: Annotated[list[ScopeName], Meta(min_length=1, max_length=_SCOPES_MAX)]
    namespace: Annotated[str, Meta(pattern=r"^([A-Za-z0-9_.-]{1,80}|\*)$")] | None = None
    prefix: Prefix = ""
    expires: Annotated[str, Meta(pattern=r"^([0-9]{1,6}(s|m|h|d|w)|never)$")] | None = None
    aws: bool = False


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret. A session of the dashboard has the id of its `parent`, the token
    that signed in."""

    id: str
    name: str
    namespace: str
    scopes: tuple[str, ...]
    prefix: str
    created_at: str
    expires_at: str | None
    by: str
    parent: str | None = None


class MadeToken(TokenView, frozen=True, kw_only=True):
    """A new token; `token` is its text, which is shown only here. An access key has two parts
    instead, of which the secret is shown only here."""

    token: str | UnsetType = UNSET
    access_key_id: str | UnsetType = UNSET
    secret_access_key: str | UnsetType = UNSET

    def __repr__(self) -> str:
        return f"<MadeToken {self.id}>"


def token_view(token: Token) -> TokenView:
    """A token as people read it."""
    return TokenView(
        id=token.id,
        name=token.name,
        namespace=token.namespace,
        scopes=token.scopes,
        prefix=token.prefix,
        created_at=show_at(token.created_at),
        expires_at=at_of(token.expires_at),
        by=token.by,
        parent=token.parent or None,
    )


def made_token(token: Token, text: str) -> MadeToken:
    """A new token with its text, or an access key with its secret."""
    view = msgspec.structs.asdict(token_view(token))
    if is_access_key_id(token.id):
        return MadeToken(access_key_id=token.id, secret_access_key=text, **view)
    return MadeToken(token=text, **view)


def expiry_ms(text: str | None) -> int | None:
    """The lifetime in a text: None for "never"; the default without a text."""
    if text is None:
        return EXPIRES_MS
    return None if text == NEVER else to_ms("expires", text, ConfigError)
