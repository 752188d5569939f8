"""Prepares calls that cannot be sent as they are.

A call with thousands of parents or follow-up jobs is split; each part is one transaction of the
server. Values that cannot be encoded, such as invalid UTF-8, are answered here as an engine would
answer them; this is checked only after a call has failed, so valid calls cost nothing.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from holdfast.core import bounds, checks, dependencies
from holdfast.core.model import Lease, NewJob, Receipt, Renewal
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.errors import HoldfastError, OutcomeUnknown, UsageError

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
Part = list[int]
"""Positions in the batch."""


def split_jobs(batch: Sequence[NewJob]) -> list[Part] | None:
    """Parts with parents before their children; None if one request is enough."""
    sizes = [len(job.after) for job in batch]
    if sum(sizes) <= bounds.PARENTS_MAX:
        return None
    return _parts(dependencies.order_parents_first(batch)[0], sizes)


def split_settlements(batch: Sequence[Settlement]) -> list[Part] | None:
    """None if one request is enough. UsageError if a single verdict is too large."""
    sizes = [_size(each) for each in batch]
    if sum(sizes) <= bounds.PARENTS_MAX:
        return None
    for each, size in zip(batch, sizes, strict=True):
        # A verdict with more follow-up jobs than any engine accepts is refused on its own.
        if size > bounds.PARENTS_MAX and len(_then(each)) <= bounds.FOLLOW_UPS_MAX:
            raise UsageError(
                f"the follow-up jobs of job {each.lease.id} depend on {size} jobs; through a"
                f" server the maximum for one verdict is {bounds.PARENTS_MAX}"
            )
    return _parts(range(len(batch)), sizes)


async def in_turn(
    parts: Sequence[Part], make: Callable[[Part], Awaitable[list[Any]]]
) -> dict[int, Any]:
    """The answers by position. If a part fails, OutcomeUnknown has the answers so far."""
    answers: dict[int, Any] = {}
    for part in parts:
        try:
            made = await make(part)
        except HoldfastError as error:
            if isinstance(error, OutcomeUnknown):
                answers |= {part[at]: each for at, each in error.known.items()}
            elif not answers:
                raise
            raise OutcomeUnknown(str(error), known=answers) from error
        answers |= zip(part, made, strict=True)
    return answers


def _size(settlement: Settlement) -> int:
    then = _then(settlement)
    return max(len(then), sum([len(job.after) for job in then])) if then else 0


def _then(settlement: Settlement) -> Sequence[NewJob]:
    verdict = settlement.verdict
    return verdict.then if isinstance(verdict, Complete) else ()


def _parts(places: Sequence[int], sizes: Sequence[int]) -> list[Part]:
    parts: list[Part] = []
    room = 0
    for at in places:
        if not parts or sizes[at] > room:
            parts.append([])
            room = bounds.PARENTS_MAX
        parts[-1].append(at)
        room -= sizes[at]
    return parts


def unsendable_jobs(batch: Sequence[NewJob]) -> dict[int, Receipt]:
    """Refusals of invalid jobs, by position."""
    found = {}
    for place, new in enumerate(batch):
        try:
            checks.check_job(new)
        except UsageError as error:
            found[place] = checks.refusal(new.id, error)
    return found


def unsendable_renewals(batch: Sequence[Renewal]) -> dict[int, None]:
    """Renewals of leases that cannot exist, by position: lost."""
    return {place: None for place, each in enumerate(batch) if _cannot_exist(each.lease)}


def unsendable_settlements(batch: Sequence[Settlement]) -> dict[int, Outcome]:
    """Outcomes of settlements that are invalid or of leases that cannot exist, by position."""
    found = {}
    for place, settlement in enumerate(batch):
        if _cannot_exist(settlement.lease):
            found[place] = Outcome.LOST
            continue
        try:
            checks.check_settlement(settlement)
        except UsageError:
            found[place] = Outcome.REFUSED
    return found


def cleaned(carried: msgspec.Struct) -> Any:
    """The same arguments, with each text cleaned as an engine would before storing it."""
    return _cleaned(msgspec.to_builtins(carried, builtin_types=(bytes,)))


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return _LONE_SURROGATE.sub("\ufffd", value)
        case dict():
            return {_cleaned(key): _cleaned(each) for key, each in value.items()}
        case list() | tuple():
            return [_cleaned(each) for each in value]
        case _:
            return value


def _cannot_exist(lease: Lease) -> bool:
    return not (bounds.JOB_ID.match(lease.id) and 0 < lease.token < 2**63)
