"""Stored records that cannot be read: find them, and remove them.

Kinds are known once their module is imported: those that not every program needs are imported here.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core import bounds
from holdfast.core.model import Record
from holdfast.engines.base import Engine
from holdfast.errors import Forbidden, NotFound, UnknownKind, UsageError
from holdfast.ops import quotas, sqs, tokens  # noqa: F401
from holdfast.ops.jobs import acts  # noqa: F401
from holdfast.ops.migrate import progress  # noqa: F401
from holdfast.ops.records import kind_of, kinds, scan


class UnreadableRecord(NamedTuple):
    """A stored record that this version cannot read, and why."""

    kind: str
    key: str
    why: str


async def find_unreadable(
    engine: Engine, *, deep: bool = False, most: int = bounds.PAGE_MAX
) -> list[UnreadableRecord]:
    """The first records that cannot be read, at most `most`; with `deep` those of logs too. Kinds
    that the caller may not read are left out.
    """
    found: list[UnreadableRecord] = []
    for name in kinds(logs=deep):
        read = 0
        try:
            async for record in scan(engine, name):
                kind = kind_of(record)
                why = "" if kind is None else kind.fault(record)
                if why:
                    found.append(UnreadableRecord(name, record.key, why))
                read += 1
                if len(found) >= most:
                    return found
                if read >= bounds.SCAN_MAX:
                    break
        except Forbidden:
            continue
    return found


async def remove_unreadable(engine: Engine, kind: str, key: str) -> None:
    """Remove one record that cannot be read. Readable ones have commands of their own."""
    reader = kind_of(Record(kind=kind, key=key, value=None))
    if reader is None:
        raise UnknownKind(f"unknown record kind {kind[:40]!r}: use one of {', '.join(kinds())}")

    def check(record: Record) -> None:
        if not reader.fault(record):
            raise UsageError(
                f'the {kind} record "{key[:80]}" can be read, and only unreadable records are'
                " removed this way: use the command of its kind"
            )

    if not await reader.remove(engine, key, check=check):
        raise NotFound(f'there is no {kind} record "{key[:80]}": see "holdfast doctor"')
