"""How much the fleet's counts grew within the last minute, from what was seen of them meanwhile.

Pure. It never says too much: it begins with the first look that is young enough. A count that was
not seen whole, as when a part of the store was away, has not grown when it is whole again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from holdfast.alerts.judging import Growth
from holdfast.alerts.rules import WINDOW_MS
from holdfast.telemetry.accounts import Fleet
from holdfast.telemetry.totals import QueueTotals

_LOOKS_MAX = 100

Counts = Mapping[str, Growth]


class Grower:
    """`at` is any clock that only goes forward, in milliseconds."""

    def __init__(self) -> None:
        self._looks: deque[tuple[int, Counts]] = deque(maxlen=_LOOKS_MAX)
        self._highest: dict[str, Growth] = {}
        self._of: object = None
        self._since: int | None = None
        self.minute = False
        """Whether it was looked at for as long as it says."""

    def look(self, at: int, fleet: Fleet, whole: object = None) -> dict[str, Growth]:
        """`whole` is another one when other parts of the store are away than before: then what is
        counted now cannot be compared with what was."""
        if (fleet.epoch, whole) != self._of:
            self._of = (fleet.epoch, whole)
            self._looks.clear()
            self._highest = {}
            self._since = None
        for queue, totals in fleet.totals.queues.items():
            self._highest[queue] = _higher(self._highest.get(queue), totals)
        self._since = at if self._since is None else self._since
        self.minute = at - self._since >= WINDOW_MS
        while self._looks and at - self._looks[0][0] > WINDOW_MS:
            self._looks.popleft()
        self._looks.append((at, dict(self._highest)))
        first = self._looks[0][1]
        # A queue that was not there at the first look had counted nothing.
        return {
            queue: _grown(first.get(queue, Growth()), now) for queue, now in self._highest.items()
        }


def _higher(known: Growth | None, totals: QueueTotals) -> Growth:
    before = known or Growth()
    return Growth(
        max(before.dead, totals.counts.get("dead", 0)),
        max(before.leased, totals.counts.get("leased", 0)),
    )


def _grown(before: Growth, now: Growth) -> Growth:
    return Growth(now.dead - before.dead, now.leased - before.leased)
