"""Quotas: how much a tenant, or a whole namespace, may enqueue. Stored with the namespace.

A quota bounds jobs and bytes per period, and the number of unfinished jobs. The server enforces
quotas for jobs enqueued over HTTP; see `holdfast.server.access`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core import bounds, checks
from holdfast.core.text import show_ms
from holdfast.engines.base import Engine
from holdfast.errors import ConfigError
from holdfast.notation.durations import to_ms
from holdfast.ops.records import RecordKind

QUOTA_KIND = "quota"
WHOLE = "namespace"
"""The owner of the quota of a whole namespace."""
TENANT = "tenant:"
"""The prefix of the owner of a tenant's quota."""
EACH = "tenant:*"
"""The owner of the quota that every tenant without one of its own has."""
QUOTAS_MAX = 10_000

_SIZES = {"": 1, "kB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}
_ALLOWANCE = r"^[0-9]{1,12}(kB|MB|GB)?/[0-9]{0,6}(ms|s|m|h|d)$"
_ALLOWANCE_TEXT = re.compile(r"([0-9]{1,12})(kB|MB|GB)?/([0-9]{0,6}(?:ms|s|m|h|d))", re.ASCII)

AllowanceText = Annotated[str, Meta(pattern=_ALLOWANCE, max_length=40, examples=["100/s"])]


class Allowance(msgspec.Struct, frozen=True):
    """`count` in `per_ms`, in any pattern; unused allowance accumulates up to `count`."""

    count: int
    per_ms: int


class Quota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`depth` bounds unfinished jobs, `rate` new jobs, `bytes` their payloads. None is no bound."""

    depth: int | None = None
    rate: Allowance | None = None
    bytes: Allowance | None = None


def _closed() -> Quota:
    return Quota(depth=0)


def _check_stored(whose: str, quota: Quota) -> None:
    check_owner(whose)
    check_quota(quota)


QUOTAS = RecordKind(QUOTA_KIND, Quota, label="the quota of", fallback=_closed, check=_check_stored)
"""A quota that cannot be read admits no jobs, rather than any number."""


class Quotas:
    """The quotas of one namespace by owner: `namespace`, `tenant:NAME` or `tenant:*`."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    async def all(self) -> dict[str, Quota]:
        """All quotas by owner."""
        return await QUOTAS.values(self._engine())

    async def put(self, whose: str, quota: Quota) -> None:
        """Add a quota, or replace the owner's present one."""
        check_owner(whose)
        check_quota(quota)
        if len(await self.all()) >= QUOTAS_MAX:
            raise ConfigError(f"there are {QUOTAS_MAX} quotas, the maximum: remove some")
        await QUOTAS.update(self._engine(), whose, lambda _: quota)

    async def remove(self, whose: str) -> bool:
        """False if the owner has no quota."""
        return await QUOTAS.remove(self._engine(), whose)


def show_owner(whose: str) -> str:
    """The owner of a quota in words."""
    return "the namespace" if whose == WHOLE else f"tenant {whose.removeprefix(TENANT)[:80]}"


def check_owner(whose: str) -> None:
    """Raise ConfigError unless a quota can have this owner."""
    if whose == WHOLE:
        return
    if not whose.startswith(TENANT) or whose == TENANT:
        raise ConfigError(
            f"quota owner {whose[:80]!r} is not valid: use {WHOLE}, {TENANT}NAME, or {EACH} for"
            " every tenant"
        )
    checks.check_text("tenant", whose)


def check_quota(quota: Quota) -> None:
    """Raise ConfigError unless the quota bounds something, within limits."""
    if quota == Quota():
        raise ConfigError("the quota has no bound: give depth, rate or bytes")
    if quota.depth is not None and not 0 <= quota.depth < bounds.SCAN_MAX:
        raise ConfigError(
            f"depth {quota.depth} is out of range: expected 0 to {bounds.SCAN_MAX - 1}"
        )
    for name, allowed in (("rate", quota.rate), ("bytes", quota.bytes)):
        if allowed is None:
            continue
        if not 1 <= allowed.count <= 2**53 or not 1 <= allowed.per_ms <= bounds.DAY_MS:
            raise ConfigError(f"{name} must be at least 1, per at most a day")


class QuotaBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`depth` bounds unfinished jobs, `rate` new jobs ("100/s"), `bytes` their payloads ("10MB/m").
    A field that is left out has no bound.
    """

    depth: Annotated[int, Meta(ge=0, lt=100_000)] | None = None
    rate: AllowanceText | None = None
    bytes: AllowanceText | None = None


class QuotaView(msgspec.Struct, frozen=True, kw_only=True):
    """A quota and its owner."""

    whose: str
    depth: int | None
    rate: str | None
    bytes: str | None


def quota_view(whose: str, quota: Quota) -> QuotaView:
    """A quota as people read it."""
    return QuotaView(
        whose=whose,
        depth=quota.depth,
        rate=show_allowance(quota.rate),
        bytes=show_allowance(quota.bytes),
    )


def quota_of(body: QuotaBody) -> Quota:
    """The quota that a person wrote."""
    return Quota(
        depth=body.depth,
        rate=to_allowance("rate", body.rate),
        bytes=to_allowance("bytes", body.bytes),
    )


def to_allowance(name: str, text: str | None) -> Allowance | None:
    """The allowance in a text such as `100/s` or `10MB/m`."""
    if text is None:
        return None
    match = _ALLOWANCE_TEXT.fullmatch(text)
    if match is None:
        raise ConfigError(f'{name} {text[:40]!r} is not valid: write e.g. "100/s" or "10MB/m"')
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
