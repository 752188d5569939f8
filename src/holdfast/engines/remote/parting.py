"""What is too much for one request goes in several, each of them a transaction of the server's.

Nearly every call is one: only those with thousands of parents or follow-up jobs are more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.core import graph, limits
from holdfast.core.model import NewJob
from holdfast.core.verdict import Complete, Settlement
from holdfast.errors import HoldfastError, OutcomeUnknown, UsageError

Part = list[int]
"""Places in the batch."""


def jobs(batch: Sequence[NewJob]) -> list[Part] | None:
    """Parents before their children; None if all can go together."""
    sizes = [len(job.after) for job in batch]
    if sum(sizes) <= limits.PARENTS_MAX:
        return None
    return _parts(graph.arrange(batch)[0], sizes)


def settlements(batch: Sequence[Settlement]) -> list[Part] | None:
    """None if all can go together. UsageError: one alone is too much; nothing is sent then."""
    sizes = [_size(each) for each in batch]
    if sum(sizes) <= limits.PARENTS_MAX:
        return None
    for each, size in zip(batch, sizes, strict=True):
        # With more follow-up jobs than any engine takes it is refused by itself: see `unfit`.
        if size > limits.PARENTS_MAX and len(_then(each)) <= limits.FOLLOW_UPS_MAX:
            raise UsageError(
                f"the follow-up jobs of job {each.lease.id} are after {size} others; through a "
                f"server {limits.PARENTS_MAX} are the most for one verdict"
            )
    return _parts(range(len(batch)), sizes)


async def in_turn(
    parts: Sequence[Part], make: Callable[[Part], Awaitable[list[Any]]]
) -> dict[int, Any]:
    """The answers by their places. What was done before one part failed is told with the error."""
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
            room = limits.PARENTS_MAX
        parts[-1].append(at)
        room -= sizes[at]
    return parts
