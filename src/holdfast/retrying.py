"""What people say about dead letters that shall go back to work → the plan of a redrive."""

from __future__ import annotations

import json

import msgspec

from holdfast.core import codec
from holdfast.core.model import JobFilter
from holdfast.durations import Duration, to_ms
from holdfast.errors import UsageError
from holdfast.rates import to_rate
from holdfast.upkeep import RedrivePlan
from holdfast.upkeep.redrive import REDRIVES_MAX

_NO_CAP = 1_000_000


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How dead letters are put back. `edit` is a JSON merge patch for each payload, as text; what
    was redriven `max_redrives` times is left alone, unless it was named by its id."""

    delay: Duration = 0
    edit: str | None = None
    max_redrives: int | None = None
    rate: str | None = None
    canary: bool = False
    canary_wait: Duration = "10m"

    def plan(self, wanted: JobFilter, by: str) -> RedrivePlan:
        cap = self.max_redrives
        return RedrivePlan(
            wanted=wanted,
            by=by,
            rate=None if self.rate is None else to_rate("rate", self.rate, UsageError),
            canary=self.canary,
            canary_wait_ms=to_ms("canary-wait", self.canary_wait, UsageError),
            redrives_max=cap if cap is not None else _NO_CAP if wanted.ids else REDRIVES_MAX,
            patch=None if self.edit is None else _patch(self.edit),
            delay_ms=to_ms("delay", self.delay, UsageError),
        )


def _patch(text: str) -> bytes:
    try:
        return codec.encode(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"edit is not JSON: {error}") from None
