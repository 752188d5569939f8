"""The states of an alert, step by step: one notice per raise, none during the cool-down."""

import random
from itertools import pairwise

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.alerts.rules import (
    RETENTION_MS,
    RULES,
    TRIES_MAX,
    Measurement,
    next_alert,
    with_retry,
)
from holdfast.core import checks
from holdfast.core.model import Record
from holdfast.ops.alerts import (
    ALERTS,
    SEEN_MS,
    STALE_MS,
    Alert,
    PendingNotice,
    alert_key,
)

COOL_MS = 300_000


def step(
    known: Alert | None, value: int | None, now: int, *, rule: str = "depth", by: str = "a"
) -> Alert | None:
    reading = None
    if value is not None:
        reading = Measurement(
            rule=RULES[rule], about="mail", queue="mail", value=value, threshold=100, text="deep"
        )
    return next_alert(known, reading, now=now, cool_down_ms=COOL_MS, by=by)


def then(known: Alert | None, value: int | None, now: int, **more: str) -> Alert:
    found = step(known, value, now, **more)
    assert found is not None
    return found


def after_delivery(alert: Alert) -> Alert:
    """The alert after its notice was delivered."""
    return replace(alert, pending=None)


def test_no_measurement_makes_no_alert() -> None:
    assert step(None, 100, 0) is None
    assert step(None, None, 0) is None


def test_raised_and_ended() -> None:
    new = then(None, 150, 1_000)
    assert (new.value, new.threshold, new.raised_at, new.severity) == (150, 100, 1_000, "critical")
    assert new.pending == PendingNotice(what="raised", at=1_000, tried_at=1_000)
    well = then(after_delivery(new), 80, 2_000)
    assert (well.ended_at, well.raised_at, well.value) == (2_000, 1_000, 150)
    assert well.pending == PendingNotice(what="ended", at=2_000, tried_at=2_000)
    record = ALERTS.record(well.key, well, 3)
    assert ALERTS.decode(record) == well
    assert {"told", "told_at", "telling"} <= set(msgspec.json.decode(record.value or b"")), (
        "the stored names do not change"
    )


def test_a_value_around_the_threshold_is_one_alert() -> None:
    alert = after_delivery(then(None, 101, 0))
    for now, value in ((1, 99), (2, 150), (3, 81), (4, 100)):
        assert step(alert, value, now) is alert


def test_a_raised_alert_is_refreshed_from_time_to_time() -> None:
    alert = after_delivery(then(None, 150, 0))
    assert step(alert, 500, SEEN_MS - 1) is alert
    later = then(alert, 500, SEEN_MS)
    assert (later.value, later.seen_at, later.raised_at) == (500, SEEN_MS, 0)
    assert later.pending is None


def test_no_notice_during_the_cool_down() -> None:
    first = after_delivery(then(None, 150, 0))
    ended = after_delivery(then(first, 0, 10_000))
    again = then(ended, 150, 20_000)
    assert (again.is_raised, again.raised_at, again.pending) == (True, 20_000, None)
    # An end is not notified if the raise was not.
    assert then(again, 0, 30_000).pending is None
    # It lasts: the notice follows when the cool-down is over.
    assert step(again, 150, COOL_MS - 1 - SEEN_MS, by="a") is not None
    late = then(again, 150, COOL_MS)
    assert late.pending == PendingNotice(what="raised", at=COOL_MS, tried_at=COOL_MS)
    assert late.raised_at == 20_000


def test_a_notice_right_after_the_cool_down() -> None:
    first = after_delivery(then(None, 150, 0))
    ended = after_delivery(then(first, 0, COOL_MS - 5))
    assert then(ended, 150, COOL_MS).pending == PendingNotice(
        what="raised", at=COOL_MS, tried_at=COOL_MS
    )


def test_a_pending_end_is_delivered_although_the_alert_is_raised_again() -> None:
    ended = then(after_delivery(then(None, 150, 0)), 0, 10)
    again = then(ended, 150, 20)
    assert again.pending == ended.pending


@pytest.mark.parametrize("jump_ms", [-(10**12), 10**12])
def test_a_clock_that_jumps_neither_silences_nor_repeats(jump_ms: int) -> None:
    now = 10**12 + 5
    alert = after_delivery(then(None, 150, now))
    now += jump_ms
    same = then(alert, 150, now)
    assert (same.pending, same.seen_at) == (None, now)
    ended = after_delivery(then(same, 0, now + 1))
    assert ended.ended_at == now + 1
    again = then(ended, 150, now + 2)
    assert (again.pending is not None) is (jump_ms != 0), (
        "the cool-down is over, as far as the clock shows"
    )
    assert step(ended, 0, now + 3) is ended


def test_an_ended_alert_is_forgotten_after_a_day() -> None:
    ended = then(after_delivery(then(None, 150, 0)), 0, 10)
    assert step(ended, 0, 10 + RETENTION_MS) is ended, "a notice is pending"
    assert step(after_delivery(ended), 0, 9 + RETENTION_MS) == after_delivery(ended)
    assert step(after_delivery(ended), 0, 10 + RETENTION_MS) is None
    assert step(after_delivery(ended), None, 10 + RETENTION_MS) is None


def test_an_own_alert_is_ended_only_by_its_server() -> None:
    alert = after_delivery(then(None, 150, 0, rule="partition_out", by="a"))
    assert step(alert, None, 10, by="b") is alert
    assert step(alert, None, STALE_MS - 1, by="b") is alert
    assert then(alert, None, STALE_MS, by="b").ended_at == STALE_MS
    assert then(alert, None, 10, by="a").ended_at == 10


def test_a_removed_rule_ends_its_alerts() -> None:
    alert = replace(after_delivery(then(None, 150, 0)), rule="older")
    assert then(alert, None, 10).ended_at == 10


def test_retries_back_off_and_end() -> None:
    alert, now, waits = then(None, 150, 0), 0, []
    while alert.pending is not None:
        began = now
        while (new := with_retry(alert, now)) is alert:
            now += 1_000
        waits.append((now - began) // 1_000)
        alert = new
    assert waits == [30, 60, 120, 240, 480, 900, 900, 900, 900, 900]
    assert len(waits) == TRIES_MAX
    assert with_retry(alert, now + 10**9) is alert


def test_a_clock_set_back_between_two_tries() -> None:
    alert = then(None, 150, 10**12)
    new = with_retry(alert, 5)
    assert new.pending == PendingNotice(what="raised", at=10**12, tried_at=5, tries=2)


def test_keys_are_plain() -> None:
    for about in ("mail", "pä rt\n", "x" * 300):
        key = alert_key("partition_out", about)
        checks.check_record(Record(kind="alert", key=key, value=b""))
    assert ALERTS.decode(Record(kind="alert", key="x", value=b'{"rule": 5}')) is None


def test_random_histories_notify_in_turn_and_rarely() -> None:
    """Notices alternate, and an alert is not raised twice within the cool-down."""
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    alert: Alert | None = None
    notices: list[PendingNotice] = []
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
        if alert is not None and alert.pending is not None:
            notices.append(alert.pending)
            alert = after_delivery(alert)
    assert [each.what for each in notices] == [
        ("raised", "ended")[at % 2] for at in range(len(notices))
    ], seed
    begun = [each.at for each in notices if each.what == "raised"]
    assert len(begun) > 10, seed
    assert all(b - a >= COOL_MS for a, b in pairwise(begun)), seed
