"""What does not fit into words, such as a text that is no UTF-8, is judged here as an engine does.

Only looked at when a call could not be sent or read: what is right costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core import admission, checks, limits
from holdfast.core.model import Lease, NewJob, Receipt, Renewal
from holdfast.core.verdict import Outcome, Settlement
from holdfast.errors import UsageError

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def jobs(batch: Sequence[NewJob]) -> dict[int, Receipt]:
    """By their places, those that no engine takes."""
    found = {}
    for place, new in enumerate(batch):
        try:
            checks.check_job(new)
        except UsageError as error:
            found[place] = admission.refused(new.id, error)
    return found


def renewals(batch: Sequence[Renewal]) -> dict[int, None]:
    return {place: None for place, each in enumerate(batch) if _is_nobodys(each.lease)}


def settlements(batch: Sequence[Settlement]) -> dict[int, Outcome]:
    found = {}
    for place, settlement in enumerate(batch):
        if _is_nobodys(settlement.lease):
            found[place] = Outcome.LOST
            continue
        try:
            checks.check_settlement(settlement)
        except UsageError:
            found[place] = Outcome.REFUSED
    return found


def worded(carried: msgspec.Struct) -> Any:
    """The same, with each text as an engine would clean it before it keeps it."""
    return _worded(msgspec.to_builtins(carried, builtin_types=(bytes,)))


def _worded(value: Any) -> Any:
    match value:
        case str():
            return _LONE_SURROGATE.sub("\ufffd", value)
        case dict():
            return {_worded(key): _worded(each) for key, each in value.items()}
        case list() | tuple():
            return [_worded(each) for each in value]
        case _:
            return value


def _is_nobodys(lease: Lease) -> bool:
    return not (limits.JOB_ID.match(lease.id) and 0 < lease.token < 2**63)
