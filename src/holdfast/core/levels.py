"""A level for everything and others for single queues, as people write it: `100, mail:5000, a:off`.

Pure. A level is a number or milliseconds; `off` is none at all.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.core import limits
from holdfast.errors import ConfigError

OFF = "off"


class Levels(msgspec.Struct, frozen=True):
    """`usual` is for every queue that is not named. None is off."""

    usual: int | None
    queues: dict[str, int | None] = {}

    def of(self, queue: str) -> int | None:
        return self.queues.get(queue, self.usual)


def read_levels(name: str, text: str, read: Callable[[str], int], *, by_queue: bool) -> Levels:
    """Raises ConfigError; `read` does for what is no number, or out of bounds."""
    usual: list[int | None] = []
    queues: dict[str, int | None] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        queue, colon, given = part.rpartition(":")
        level = None if given.strip().lower() == OFF else read(given.strip())
        if not colon:
            usual.append(level)
        elif not by_queue or not limits.QUEUE_NAME.match(queue) or queue in queues:
            raise ConfigError(f"{name} {part[:80]!r} cannot be: {_remedy(by_queue)}")
        else:
            queues[queue] = level
    if len(usual) != 1:
        raise ConfigError(f"{name} {text[:80]!r} has {len(usual)} values: {_remedy(by_queue)}")
    return Levels(usual[0], queues)


def _remedy(by_queue: bool) -> str:
    if by_queue:
        return "write one for all queues, and others once for each: 100,mail:5000,old:off"
    return "write one, or off"
