"""The records that counts are kept in: one account for each process, and one for all that ended.

Pure. An account holds everything its process counted since it started, so that writing it twice
changes nothing. Only its process writes it, until upkeep closes it; a closed one is added to the
ended ones and then goes. Whoever reads sums the ended ones and all accounts not yet among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.model import Record
from holdfast.telemetry.totals import OTHER, QUEUES_MAX, Totals, label_of, summed_up

KIND: Final = "counters"
ENDED_KEY: Final = "(ended)"

SILENT_MS: Final = 5 * limits.MINUTE_MS
"""A process that wrote nothing for so long is taken for ended. One that is not begins anew."""
ALIVE_MS: Final = limits.MINUTE_MS
"""A process that has nothing to tell tells that."""
CROWD: Final = 500
"""Beyond so many accounts those go sooner that are silent for a while."""
CROWD_SILENT_MS: Final = 30 * limits.SECOND_MS
GONE_MS: Final = 15 * limits.SECOND_MS
"""How long an account stays after it was added: nobody reads for so long."""
REMEMBERED_MS: Final = 10 * limits.MINUTE_MS
"""How long it is known that an account was added: no upkeep takes so long over one step."""


class Account(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`closed` by its process, which has ended, or by upkeep: nothing is added to it any more."""

    role: str = ""
    host: str = ""
    pid: int = 0
    closed: bool = False
    totals: Totals = msgspec.field(default_factory=Totals)


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`epoch` is another one if the counts began anew. `queues` have a name of their own in the
    fleet's counts, from when they were first seen on. `added` are the keys of the accounts that
    are in the totals, and when that was."""

    epoch: str = ""
    queues: tuple[str, ...] = ()
    added: dict[str, int] = {}
    totals: Totals = msgspec.field(default_factory=Totals)


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """What all processes counted, as far as the store knows."""

    epoch: str = ""
    totals: Totals = msgspec.field(default_factory=Totals)
    processes: int = 0


Kept = TypeVar("Kept", Account, Ended)


def read(record: Record, kind: type[Kept]) -> Kept | None:
    """None for what another version wrote and this one cannot read."""
    try:
        return msgspec.json.decode(record.value or b"", type=kind)
    except msgspec.DecodeError:
        return None


def written(kept: Account | Ended) -> bytes:
    """As it is stored. If it were too large for a record, the requests of the servers would be
    what is left out: they are most of it."""
    value = msgspec.json.encode(kept)
    if len(value) <= limits.RECORD_MAX:
        return value
    return msgspec.json.encode(replace(kept, totals=replace(kept.totals, requests={})))


def summed(ended: Ended, accounts: Sequence[tuple[str, Account]]) -> Fleet:
    """Queues that are new get a name of their own while there is room, as `names` will say."""
    new = (account.totals for key, account in accounts if key not in ended.added)
    totals = summed_up((ended.totals, *new))
    return Fleet(
        epoch=ended.epoch,
        totals=totals.named(names(ended, totals.queues)),
        processes=sum(not account.closed for _, account in accounts),
    )


def is_anew(before: str, epoch: str) -> bool:
    """Did the counts begin anew in between? Not known is no."""
    return bool(before and epoch) and before != epoch


def names(ended: Ended, seen: Iterable[str]) -> tuple[str, ...]:
    """Those that have a name keep it; others that were seen follow while there is room."""
    known = dict.fromkeys(ended.queues)
    for name in sorted(seen):
        if name != OTHER and len(known) < QUEUES_MAX and label_of(name, known) == name:
            known[name] = None
    return tuple(known)


def is_over(record: Record, account: Account | None, count: int) -> bool:
    """Shall upkeep close it?"""
    if account is not None and account.closed:
        return True
    return record.age_ms > (SILENT_MS if count <= CROWD else CROWD_SILENT_MS)
