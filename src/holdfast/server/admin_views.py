"""Tokens, quotas and acts as they are shown and written, by REST and by the command line."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.durations import show_at, show_ms, to_ms
from holdfast.errors import ConfigError
from holdfast.server.audit import Act
from holdfast.server.callers import Scope
from holdfast.server.quotas import Allowance, Quota
from holdfast.server.tokens import EXPIRES_MS, Token

NEVER = "never"
_SIZES = {"": 1, "kB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}
_ALLOWANCE = r"^[0-9]{1,12}(kB|MB|GB)?/[0-9]{0,6}(ms|s|m|h|d)$"
_TEXT = re.compile(r"([0-9]{1,12})(kB|MB|GB)?/([0-9]{0,6}(?:ms|s|m|h|d))", re.ASCII)

AllowanceText = Annotated[str, Meta(pattern=_ALLOWANCE, max_length=40, examples=["100/s"])]
ScopeName = Annotated[str, Meta(pattern="^(produce|consume|operate|admin|run-commands)$")]
Prefix = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{0,70}$", max_length=70)]


class NewToken(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`expires` is how long it lasts, such as 90d, or "never". Without a namespace it is for the
    caller's; "*" is for all of them."""

    name: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9_.@:/-]([A-Za-z0-9_.@:/ -]{0,78}[A-Za-z0-9_.@:/-])?$")
    ]
    scopes: Annotated[list[ScopeName], Meta(min_length=1, max_length=len(Scope))]
    namespace: Annotated[str, Meta(pattern=r"^([A-Za-z0-9_.-]{1,80}|\*)$")] | None = None
    prefix: Prefix = ""
    expires: Annotated[str, Meta(pattern=r"^([0-9]{1,6}(s|m|h|d|w)|never)$")] | None = None


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    namespace: str
    scopes: tuple[str, ...]
    prefix: str
    created_at: str
    expires_at: str | None
    by: str


class MadeToken(TokenView, frozen=True, kw_only=True):
    """`token` is shown this once."""

    token: str

    def __repr__(self) -> str:
        return f"<MadeToken {self.id}>"


class QuotaBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`depth` bounds jobs that have not ended, `rate` jobs that come in ("100/s"), `bytes` what
    their payloads come to ("10MB/m"). What is left out has no bound."""

    depth: Annotated[int, Meta(ge=0, lt=100_000)] | None = None
    rate: AllowanceText | None = None
    bytes: AllowanceText | None = None


class QuotaView(msgspec.Struct, frozen=True, kw_only=True):
    whose: str
    depth: int | None
    rate: str | None
    bytes: str | None


class ActView(msgspec.Struct, frozen=True, kw_only=True):
    """`outcome` is "done", the code of an error, or null when it is not known."""

    at: str
    who: str
    token: str | None
    peer: str | None
    what: str
    on: str
    outcome: str | None
    changed: int | None


def token_view(token: Token) -> TokenView:
    return TokenView(
        id=token.id,
        name=token.name,
        namespace=token.namespace,
        scopes=token.scopes,
        prefix=token.prefix,
        created_at=show_at(token.created_at),
        expires_at=None if token.expires_at is None else show_at(token.expires_at),
        by=token.by,
    )


def made_token(token: Token, text: str) -> MadeToken:
    return MadeToken(token=text, **msgspec.structs.asdict(token_view(token)))


def quota_view(whose: str, quota: Quota) -> QuotaView:
    return QuotaView(
        whose=whose,
        depth=quota.depth,
        rate=show_allowance(quota.rate),
        bytes=show_allowance(quota.bytes),
    )


def act_view(act: Act) -> ActView:
    return ActView(
        at=show_at(act.at),
        who=act.who,
        token=act.token or None,
        peer=act.peer or None,
        what=act.what,
        on=act.on,
        outcome=act.outcome or None,
        changed=act.changed,
    )


def expiry_ms(text: str | None) -> int | None:
    """None is never; nothing said is the default."""
    if text is None:
        return EXPIRES_MS
    return None if text == NEVER else to_ms("expires", text, ConfigError)


def quota_of(body: QuotaBody) -> Quota:
    return Quota(
        depth=body.depth,
        rate=to_allowance("rate", body.rate),
        bytes=to_allowance("bytes", body.bytes),
    )


def to_allowance(name: str, text: str | None) -> Allowance | None:
    if text is None:
        return None
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ConfigError(f'{name} {text[:40]!r} cannot be read: write "100/s" or "10MB/m"')
    count, size, per = match.groups()
    per_ms = to_ms(name, per if per[0].isdigit() else f"1{per}", ConfigError)
    return Allowance(int(count) * _SIZES[size or ""], per_ms)


def show_allowance(allowed: Allowance | None) -> str | None:
    """The text that `to_allowance` reads back."""
    if allowed is None:
        return None
    per = show_ms(allowed.per_ms)
    plain = per[1:] if per[0] == "1" and not per[1:2].isdigit() else per
    return f"{allowed.count}/{plain}"
