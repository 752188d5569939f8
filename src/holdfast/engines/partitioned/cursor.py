"""A position in the lists of several partitions as one number. Pure.

It is as long as it must be: 64 bits for each partition, the first in the lowest, and a 1 above
them all. Of each, 0 says from its beginning, 1 that it has ended, and more how far it was read.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import UsageError

_BITS = 64
_ENDED = 1
_SHIFT = 2


class Position:
    """Where one partition's list goes on: `after` is its own cursor, None from the beginning."""

    __slots__ = ("after", "ended")

    def __init__(self, after: int | None = None, *, ended: bool = False) -> None:
        self.after = after
        self.ended = ended


def decode(after: int | None, count: int) -> list[Position]:
    given: object = after
    if after is None:
        return [Position() for _ in range(count)]
    if not isinstance(given, int) or after < 0 or after >> (_BITS * count) != 1:
        raise UsageError(f"after {after!r} is no cursor of this engine")
    numbers = [after >> (_BITS * place) & (1 << _BITS) - 1 for place in range(count)]
    return [
        Position(None if number < _SHIFT else number - _SHIFT, ended=number == _ENDED)
        for number in numbers
    ]


def encode(positions: Sequence[Position]) -> int:
    numbers = [_number(each) << (_BITS * place) for place, each in enumerate(positions)]
    return 1 << (_BITS * len(positions)) | sum(numbers)


def _number(position: Position) -> int:
    if position.ended:
        return _ENDED
    return 0 if position.after is None else position.after + _SHIFT
