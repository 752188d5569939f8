"""What becomes of an alert, step by step: told once, ended once, silent while it cools down."""

import random
from itertools import pairwise

import pytest
from msgspec.structs import replace

from holdfast.alerts.book import (
    KEPT_MS,
    SEEN_MS,
    STALE_MS,
    TRIES_MAX,
    Alert,
    Telling,
    after,
    alert_of,
    key_of,
    record_of,
    retried,
)
from holdfast.alerts.judging import Reading
from holdfast.alerts.rules import RULES
from holdfast.core import checks
from holdfast.core.model import Record

COOL_MS = 300_000


def step(
    known: Alert | None, value: int | None, now: int, *, rule: str = "depth", by: str = "a"
) -> Alert | None:
    reading = None
    if value is not None:
        reading = Reading(
            rule=RULES[rule], about="mail", queue="mail", value=value, threshold=100, text="deep"
        )
    return after(known, reading, now=now, cool_down_ms=COOL_MS, by=by)


def then(known: Alert | None, value: int | None, now: int, **more: str) -> Alert:
    found = step(known, value, now, **more)
    assert found is not None
    return found


def said(alert: Alert) -> Alert:
    """What was to be told has been."""
    return replace(alert, telling=None)


def test_nothing_is_wrong() -> None:
    assert step(None, 100, 0) is None
    assert step(None, None, 0) is None


def test_raised_and_ended() -> None:
    new = then(None, 150, 1_000)
    assert (new.value, new.threshold, new.raised_at, new.severity) == (150, 100, 1_000, "critical")
    assert new.telling == Telling(what="raised", at=1_000, tried_at=1_000)
    well = then(said(new), 80, 2_000)
    assert (well.ended_at, well.raised_at, well.value) == (2_000, 1_000, 150)
    assert well.telling == Telling(what="ended", at=2_000, tried_at=2_000)
    assert alert_of(record_of(well, 3)) == well


def test_what_wavers_is_one_alert() -> None:
    alert = said(then(None, 101, 0))
    for now, value in ((1, 99), (2, 150), (3, 81), (4, 100)):
        assert step(alert, value, now) is alert


def test_that_it_goes_on_is_written_down_now_and_then() -> None:
    alert = said(then(None, 150, 0))
    assert step(alert, 500, SEEN_MS - 1) is alert
    later = then(alert, 500, SEEN_MS)
    assert (later.value, later.seen_at, later.raised_at) == (500, SEEN_MS, 0)
    assert later.telling is None


def test_the_same_alert_is_not_told_again_while_it_cools_down() -> None:
    first = said(then(None, 150, 0))
    ended = said(then(first, 0, 10_000))
    again = then(ended, 150, 20_000)
    assert (again.is_raised, again.raised_at, again.telling) == (True, 20_000, None)
    # Who heard nothing of its beginning hears nothing of its end.
    assert then(again, 0, 30_000).telling is None
    # It lasts: it is told when the time is over.
    assert step(again, 150, COOL_MS - 1 - SEEN_MS, by="a") is not None
    late = then(again, 150, COOL_MS)
    assert late.telling == Telling(what="raised", at=COOL_MS, tried_at=COOL_MS)
    assert late.raised_at == 20_000


def test_after_the_cool_down_it_is_told_at_once() -> None:
    first = said(then(None, 150, 0))
    ended = said(then(first, 0, COOL_MS - 5))
    assert then(ended, 150, COOL_MS).telling == Telling(what="raised", at=COOL_MS, tried_at=COOL_MS)


def test_an_end_that_was_not_told_yet_is_told_although_it_is_raised_again() -> None:
    ended = then(said(then(None, 150, 0)), 0, 10)
    again = then(ended, 150, 20)
    assert again.telling == ended.telling


@pytest.mark.parametrize("jump_ms", [-(10**12), 10**12])
def test_a_clock_that_jumps_neither_silences_nor_repeats(jump_ms: int) -> None:
    now = 10**12 + 5
    alert = said(then(None, 150, now))
    now += jump_ms
    same = then(alert, 150, now)
    assert (same.telling, same.seen_at) == (None, now)
    ended = said(then(same, 0, now + 1))
    assert ended.ended_at == now + 1
    again = then(ended, 150, now + 2)
    assert (again.telling is not None) is (jump_ms != 0), "cooled down, as far as anybody can tell"
    assert step(ended, 0, now + 3) is ended


def test_one_that_ended_is_forgotten_after_a_day() -> None:
    ended = then(said(then(None, 150, 0)), 0, 10)
    assert step(ended, 0, 10 + KEPT_MS) is ended, "somebody is still to be told"
    assert step(said(ended), 0, 9 + KEPT_MS) == said(ended)
    assert step(said(ended), 0, 10 + KEPT_MS) is None
    assert step(said(ended), None, 10 + KEPT_MS) is None


def test_what_a_server_sees_for_itself_only_it_ends() -> None:
    alert = said(then(None, 150, 0, rule="partition_out", by="a"))
    assert step(alert, None, 10, by="b") is alert
    assert step(alert, None, STALE_MS - 1, by="b") is alert
    assert then(alert, None, STALE_MS, by="b").ended_at == STALE_MS
    assert then(alert, None, 10, by="a").ended_at == 10


def test_a_rule_that_is_no_more_ends_its_alerts() -> None:
    alert = replace(said(then(None, 150, 0)), rule="older")
    assert then(alert, None, 10).ended_at == 10


def test_tries_come_slower_and_slower_and_to_an_end() -> None:
    alert, now, waits = then(None, 150, 0), 0, []
    while alert.telling is not None:
        began = now
        while (new := retried(alert, now)) is alert:
            now += 1_000
        waits.append((now - began) // 1_000)
        alert = new
    assert waits == [30, 60, 120, 240, 480, 900, 900, 900, 900, 900]
    assert len(waits) == TRIES_MAX
    assert retried(alert, now + 10**9) is alert


def test_the_clock_went_back_between_two_tries() -> None:
    alert = then(None, 150, 10**12)
    new = retried(alert, 5)
    assert new.telling == Telling(what="raised", at=10**12, tried_at=5, tries=2)


def test_keys_are_plain() -> None:
    for about in ("mail", "pä rt\n", "x" * 300):
        key = key_of("partition_out", about)
        checks.check_record(Record(kind="alert", key=key, value=b""))
    assert alert_of(Record(kind="alert", key="x", value=b'{"rule": 5}')) is None


def test_any_course_of_things_tells_in_turn_and_seldom() -> None:
    """Raised, ended, raised, …; of the same alert no two raisings within the cool-down."""
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    alert: Alert | None = None
    told: list[Telling] = []
    now = 0
    for _ in range(5_000):
        now += dice.choice((1_000, 5_000, 60_000))
        value = dice.choice((0, 79, 90, 101, 500, None))
        alert = step(alert, value, now)
        if value is not None and value > 100:
            assert alert is not None, seed
            assert alert.is_raised, seed
        if value in (None, 0, 79):
            assert alert is None or not alert.is_raised, seed
        if alert is not None and alert.telling is not None:
            told.append(alert.telling)
            alert = said(alert)
    assert [each.what for each in told] == [
        ("raised", "ended")[at % 2] for at in range(len(told))
    ], seed
    begun = [each.at for each in told if each.what == "raised"]
    assert len(begun) > 10, seed
    assert all(b - a >= COOL_MS for a, b in pairwise(begun)), seed
