"""A circuit breaker, and how it stands."""

from __future__ import annotations

import msgspec

from holdfast.breakers import show_breaker
from holdfast.core import breaker as rules
from holdfast.core.breaker import BreakerState
from holdfast.worker.breaker_book import Known


class BreakerView(msgspec.Struct, frozen=True, kw_only=True):
    """`opened_by` is who opened it by hand, "" if nobody did."""

    name: str
    state: BreakerState
    failures: int
    openings: int
    opened_by: str
    probe_in_ms: int | None
    last: str
    policy: str
    changed_ms_ago: int


def breaker_view(name: str, known: Known) -> BreakerView:
    record = known.record
    return BreakerView(
        name=name,
        state=record.state,
        failures=record.streak,
        openings=record.openings,
        opened_by=record.by,
        probe_in_ms=rules.left_ms(record, known.age_ms),
        last=record.last,
        policy=show_breaker(record.policy),
        changed_ms_ago=max(0, known.age_ms),
    )
