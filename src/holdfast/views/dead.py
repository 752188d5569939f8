"""What killed dead letters, which of them killed workers, and what was done about them."""

from __future__ import annotations

import msgspec

from holdfast.dead_letters import DeadGroup, DeadGroups, Quarantined
from holdfast.durations import show_at


class DeadGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of one fingerprint. `type` and `text` are of the newest, `ids` the newest ones;
    names are given with how many. With `estimated` only the newest were looked at."""

    fingerprint: str | None
    count: int
    estimated: bool
    type: str
    text: str
    first_at: str | None
    last_at: str | None
    redriven: int
    tasks: dict[str, int]
    queues: dict[str, int]
    reasons: dict[str, int]
    tenants: dict[str, int]
    workers: dict[str, int]
    trend: tuple[int, ...]
    ids: tuple[str, ...]


class DeadGroupsView(msgspec.Struct, frozen=True, kw_only=True):
    """The largest groups first. `total` dead letters are in all groups, of which `hidden` are not
    given; with `estimated` there are at least so many. A trend begins at `trend_from`, and each of
    its numbers is for `bucket_ms`."""

    groups: tuple[DeadGroupView, ...]
    hidden: int
    total: int
    estimated: bool
    trend_from: str
    bucket_ms: int


class QuarantinedView(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was given up because the processes that ran it died. `words` is the last that the
    process wrote, `output` the last that the job did."""

    id: str
    queue: str
    task: str
    died_at: str
    crashes: int
    redrives: int
    signal: int | None
    exit_code: int | None
    type: str
    text: str
    words: str
    output: str
    workers: tuple[str, ...]


class Retried(msgspec.Struct, frozen=True, kw_only=True):
    """`found` dead letters fit, at least so many with `more`; `capped` others were redriven too
    often already."""

    found: int
    more: bool
    capped: int
    retried: int


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """`found` dead letters fit, at least so many with `more`."""

    found: int
    more: bool
    purged: int


class Cleaned(msgspec.Struct, frozen=True, kw_only=True):
    """Finished jobs that were old: `found`, at least so many with `more`."""

    found: int
    more: bool
    deleted: int


def groups_view(found: DeadGroups) -> DeadGroupsView:
    return DeadGroupsView(
        groups=tuple(_group(group) for group in found.groups),
        hidden=found.hidden,
        total=found.total,
        estimated=found.estimated,
        trend_from=show_at(found.trend_from),
        bucket_ms=found.bucket_ms,
    )


def quarantined_view(each: Quarantined) -> QuarantinedView:
    said = {name: getattr(each, name) for name in each.__struct_fields__}
    return QuarantinedView(**{**said, "died_at": show_at(each.died_at)})


def _group(group: DeadGroup) -> DeadGroupView:
    said = {name: getattr(group, name) for name in group.__struct_fields__}
    known = bool(group.ids)
    first_at = show_at(group.first_at) if known else None
    last_at = show_at(group.last_at) if known else None
    return DeadGroupView(**{**said, "first_at": first_at, "last_at": last_at})
