"""Ticks of schedules, compared with a minute-by-minute model over years of time zones."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core.model import NewJob
from holdfast.errors import ConfigError, InvalidJob
from holdfast.ops import ticks as tick_rules
from holdfast.ops.ticks import (
    Schedule,
    check_schedule,
    due_ticks,
    next_tick,
    past_ticks,
    rule_words,
)

MINUTE = timedelta(minutes=1)
JOB = NewJob(id="-", task="t")
HOUR = 3_600_000
DAY = 24 * HOUR

# Shifts of an hour, half an hour and two hours, at midnight, and a day that was left out.
ZONES = """
    Europe/Berlin America/New_York Australia/Lord_Howe Antarctica/Troll Africa/Cairo
    America/Sao_Paulo Asia/Tehran Pacific/Apia Asia/Beirut America/St_Johns Africa/Casablanca
    Pacific/Chatham Asia/Kolkata Europe/Dublin America/Havana Asia/Gaza
""".split()

# The rule, and the minutes and hours it names; None for `*`.
RULES: list[tuple[str, set[int], set[int] | None]] = [
    ("30 2 * * *", {30}, {2}),
    ("0 0 * * *", {0}, {0}),
    ("*/15 1-3 * * *", {0, 15, 30, 45}, {1, 2, 3}),
    ("10 */2 * * *", {10}, set(range(0, 24, 2))),
    ("0 * * * *", {0}, None),
    ("20,50 * * * *", {20, 50}, None),
    ("0 30 2 * * *", {30}, {2}),
    ("@daily", {0}, {0}),
    ("@hourly", {0}, None),
]


def schedule(**fields: Any) -> Schedule:
    return Schedule(**{"name": "s", "job": JOB, **fields})


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def ticks(rule: Schedule, start: datetime, end: datetime) -> list[datetime]:
    found: list[datetime] = []
    after = round(start.timestamp() * 1000) - 1
    while True:
        tick = next_tick(rule, after)
        assert tick is not None
        assert tick > after
        if tick >= end.timestamp() * 1000:
            return found
        found.append(datetime.fromtimestamp(tick / 1000, UTC))
        after = tick


def shifts(zone: ZoneInfo, first_year: int, last_year: int) -> Iterator[datetime]:
    """The minutes at which the zone's clocks are set."""
    hour = datetime(first_year, 1, 1, tzinfo=UTC)
    while hour.year <= last_year:
        later = hour + timedelta(hours=12)
        if hour.astimezone(zone).utcoffset() != later.astimezone(zone).utcoffset():
            minute = hour
            before = hour.astimezone(zone).utcoffset()
            while minute.astimezone(zone).utcoffset() == before:
                minute += MINUTE
            yield minute
        hour = later


Shown = dict[datetime, list[datetime]]


def read_clock(zone: ZoneInfo, start: datetime, end: datetime) -> Shown:
    """The local times that the zone's clocks show, with their instants, minute by minute."""
    # Longer than any gap or overlap; only Samoa ever left out a day.
    margin = timedelta(hours=25 if zone.key == "Pacific/Apia" else 3)
    instant = start - margin
    shown: Shown = {}
    while instant < end + margin:
        shown.setdefault(instant.astimezone(zone).replace(tzinfo=None), []).append(instant)
        instant += MINUTE
    return shown


def expected(shown: Shown, minutes: set[int], hours: set[int] | None) -> Iterator[datetime]:
    """The ticks according to the clocks, by the rules for gaps and overlaps."""
    local, last = min(shown), max(shown)
    missed = False
    while local <= last:
        named = local.minute in minutes and (hours is None or local.hour in hours)
        instants = shown.get(local)
        if instants is None:
            missed = missed or (named and hours is not None)
        elif named and hours is None:
            yield from instants
        elif named or missed:
            yield instants[0]
        if instants is not None:
            missed = False
        local += MINUTE


@pytest.mark.parametrize("name", ZONES)
def test_ticks_over_eight_years_of_a_zone(name: str) -> None:
    zone = ZoneInfo(name)
    for shift in shifts(zone, 2010, 2018):
        start, end = shift - timedelta(hours=7), shift + timedelta(hours=7)
        shown = read_clock(zone, start, end)
        for rule, minutes, hours in RULES:
            want = sorted(t for t in expected(shown, minutes, hours) if start <= t < end)
            got = ticks(schedule(cron=rule, zone=name), start, end)
            assert got == want, (name, rule, shift)


def test_the_tested_zones_change_their_offset() -> None:
    counts = {name: len(list(shifts(ZoneInfo(name), 2010, 2018))) for name in ZONES}
    assert counts["Europe/Berlin"] == 18
    assert sum(counts.values()) > 150


@pytest.mark.parametrize(
    ("rule", "zone", "after", "want"),
    [
        # A time in the gap moves to the first minute after it.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00Z", "2026-03-29T03:00+02:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"),
        # A time in the overlap fires once, the first time.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", "2026-10-25T02:30+02:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"),
        # In the second pass of the overlap, the first one does not fire again.
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T02:10+01:00", "2026-10-26T02:30+01:00"),
        ("0 * * * *", "Europe/Berlin", "2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00"),
        ("@weekly", "UTC", "2026-11-02T00:00Z", "2026-11-08T00:00Z"),
        ("@MONTHLY", "Asia/Kolkata", "2026-11-02T00:00Z", "2026-12-01T00:00+05:30"),
        ("@yearly", "UTC", "2026-11-02T00:00Z", "2027-01-01T00:00Z"),
        ("*/10 * * * * *", "UTC", "2026-11-02T00:00:05Z", "2026-11-02T00:00:10Z"),
        ("0 0 L * *", "UTC", "2027-02-01T00:00Z", "2027-02-28T00:00Z"),
        ("0 9 * * MON#2", "UTC", "2026-11-01T00:00Z", "2026-11-09T09:00Z"),
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00Z", "2028-02-29T00:00Z"),
        # The day that Samoa left out.
        ("0 8 30 * *", "Pacific/Apia", "2011-12-20T00:00Z", "2011-12-31T00:00+14:00"),
    ],
)
def test_single_ticks(rule: str, zone: str, after: str, want: str) -> None:
    assert next_tick(schedule(cron=rule, zone=zone), ms(after)) == ms(want)


@given(every=st.integers(100, 10**10), anchor=st.integers(0, 10**13), after=st.integers(0, 10**13))
def test_intervals_count_from_their_anchor(every: int, anchor: int, after: int) -> None:
    tick = next_tick(schedule(every_ms=every, anchor_at=anchor), after)
    assert tick is not None
    assert after < tick <= max(anchor, after + every)
    assert (tick - anchor) % every == 0


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_nothing_ticks_before_the_anchor(missed: Any) -> None:
    rule = schedule(every_ms=HOUR, anchor_at=10 * HOUR, missed=missed)
    assert next_tick(rule, 0) == 10 * HOUR
    assert next_tick(rule, 10 * HOUR) == 11 * HOUR
    assert due_ticks(rule, 10 * HOUR - 1) == ([], 0)
    assert due_ticks(rule, 10 * HOUR) == ([10 * HOUR], 10 * HOUR)


@given(
    every=st.integers(100, 1_000),
    anchor=st.integers(0, 10_000),
    passed_at=st.integers(0, 10_000),
    now=st.integers(0, 10_000),
    most=st.integers(1, 20),
)
def test_missed_intervals_are_the_latest_ones(
    every: int, anchor: int, passed_at: int, now: int, most: int
) -> None:
    rule = schedule(
        every_ms=every, anchor_at=anchor, passed_at=passed_at, missed="all", missed_max=most
    )
    walked = [tick for tick in range(anchor, now + 1, every) if passed_at < tick]
    assert due_ticks(rule, now)[0] == walked[-most:]


@given(
    rule=st.sampled_from(["0 * * * *", "30 2 * * *", "*/20 1-3 * * *", "59 59 23 * * *"]),
    zone=st.sampled_from(ZONES),
    at=st.integers(1_640_995_200_000, 1_767_225_600_000),
    days=st.integers(1, 200),
    most=st.integers(1, 5),
)
def test_missed_cron_ticks_are_the_latest_ones(
    rule: str, zone: str, at: int, days: int, most: int
) -> None:
    missed = schedule(
        cron=rule, zone=zone, missed="all", missed_max=most, passed_at=at - days * DAY
    )
    walked, tick = [], next_tick(missed, max(missed.passed_at, at - 10 * DAY))
    while tick is not None and tick <= at:
        walked.append(tick)
        tick = next_tick(missed, tick)
    assert due_ticks(missed, at)[0] == walked[-most:]


@pytest.mark.parametrize("rule", ["59 59 23 29 2 *", "0 0 1 1 *", "* * * 29 2 *"])
@pytest.mark.parametrize("passed_at", [0, ms("1999-12-31T00:00Z"), ms("2026-10-01T00:00Z")])
def test_rare_ticks_that_were_missed_for_years(rule: str, passed_at: int) -> None:
    now = ms("2026-11-02T00:00Z")
    fields = {"missed": "all", "missed_max": 1_000, "zone": "Europe/Berlin"}
    found, _ = due_ticks(schedule(cron=rule, passed_at=passed_at, **fields), now)
    walked: list[int] = []
    tick = next_tick(schedule(cron=rule, **fields), passed_at)
    while tick is not None and tick <= now and len(walked) < 1_000:
        walked.append(tick)
        tick = next_tick(schedule(cron=rule, **fields), tick)
    assert len(found) == len(walked)
    assert found == walked or len(found) == 1_000


def test_ticks_end_with_the_calendar() -> None:
    last = ms("9999-12-31T23:59:59Z")
    assert next_tick(schedule(every_ms=HOUR), last) is None
    for zone in ("UTC", "Pacific/Apia", "America/New_York"):
        assert next_tick(schedule(cron="* * * * *", zone=zone), last) is None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"cron": "* * *"}, "minute hour day month weekday"),
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"cron": "@sometimes"}, "@hourly, @daily"),
        ({"cron": "0 0 31 2 *"}, "cannot be read"),
        ({"cron": "0 0 */31 2 MON#5"}, "never fires"),
        ({}, "either a cron rule or an interval"),
        ({"cron": "* * * * *", "every_ms": 1000}, "either a cron rule or an interval"),
        ({"every_ms": 0}, "every_ms 0 of schedule s is out of range: expected 100"),
        ({"every_ms": 1000, "anchor_at": -1}, "anchor_at"),
        ({"cron": "@daily", "zone": "Mars/Base"}, "Europe/Berlin"),
        ({"cron": "@daily", "zone": "../../etc/passwd"}, "Europe/Berlin"),
        ({"cron": "@daily", "zone": "Europe"}, "Europe/Berlin"),
        ({"cron": "@daily", "zone": ""}, "Europe/Berlin"),
        ({"cron": "@daily", "missed": "never"}, "skip, once or all"),
        ({"cron": "@daily", "missed_max": 0}, "missed_max"),
        ({"cron": "@daily", "name": "a/b"}, "schedule name"),
    ],
)
def test_a_schedule_that_cannot_tick_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_schedule(schedule(**fields))


@given(
    st.one_of(
        st.text(max_size=30),
        st.lists(
            st.text("0123456789*/,-#LWSUNMON?", min_size=1, max_size=6), min_size=5, max_size=6
        ).map(" ".join),
    )
)
@example("* * * * 5L/2")
@example("* * * * MON#2/2")
@example("0" * 5000 + " * * * *")
def test_any_cron_text_ticks_or_is_refused(text: str) -> None:
    rule = schedule(cron=text, zone="Europe/Berlin")
    try:
        check_schedule(rule)
    except ConfigError:
        return
    tick = next_tick(rule, 10**12)
    assert tick is None or tick > 10**12


def test_a_job_that_cannot_be_enqueued_is_refused() -> None:
    with pytest.raises(InvalidJob, match="priority"):
        check_schedule(schedule(cron="@daily", job=NewJob(id="-", task="t", priority=1000)))


@pytest.mark.parametrize(
    ("missed", "late_ms", "want"),
    [
        ("skip", 0, [10]),
        ("skip", 60_000, [10]),
        ("skip", 60_001, []),
        ("once", 0, [10]),
        ("once", HOUR - 1, [10]),
        ("all", 60_001, [8, 9, 10]),
    ],
)
def test_missed_ticks(missed: Any, late_ms: int, want: list[int]) -> None:
    hourly = schedule(every_ms=HOUR, missed=missed, missed_max=3, passed_at=2 * HOUR)
    found, passed_at = due_ticks(hourly, 10 * HOUR + late_ms)
    assert [tick // HOUR for tick in found] == want
    assert passed_at == 10 * HOUR


def test_no_tick_is_due_twice_or_early() -> None:
    hourly = schedule(every_ms=HOUR, passed_at=10 * HOUR)
    assert due_ticks(hourly, 10 * HOUR) == ([], 10 * HOUR)
    assert due_ticks(hourly, 3 * HOUR) == ([], 10 * HOUR)
    assert due_ticks(hourly, 11 * HOUR - 1) == ([], 10 * HOUR)


@pytest.mark.parametrize(
    "rule",
    [
        {"cron": "* * * * * *"},
        # Every second of one day in a year.
        {"cron": "* * * 2 11 *"},
        {"cron": "* * * 1 1 *"},
        {"every_ms": 100},
    ],
)
def test_years_of_missed_ticks_are_not_walked(
    rule: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []

    def counted(rule: Schedule, after: int) -> int | None:
        steps.append(after)
        return next_tick(rule, after)

    monkeypatch.setattr(tick_rules, "next_tick", counted)
    now = ms("2026-11-02T00:00:00Z")
    old = schedule(missed="all", missed_max=10, passed_at=now - 5 * 365 * 24 * HOUR, **rule)
    found, passed_at = due_ticks(old, now)
    assert (len(found), found[-1]) == (10, passed_at)
    assert len(steps) < 100


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("rule", ["30 2 * * *", "*/20 * * * *", "0 0 29 2 *", "@yearly"])
def test_past_ticks_are_the_last_that_the_rule_had(rule: str, zone: str) -> None:
    now = 20_000 * DAY + 5 * HOUR
    schedule = Schedule(name="s", job=JOB, cron=rule, zone=zone, passed_at=now)
    found = past_ticks(schedule, now, 6)
    assert len(found) == 6
    assert found[-1] <= now
    assert [next_tick(schedule, tick) for tick in found[:-1]] == found[1:]
    last = next_tick(schedule, found[-1])
    assert last is not None
    assert last > now


def test_past_ticks_of_an_interval_begin_with_its_anchor() -> None:
    schedule = Schedule(name="s", job=JOB, every_ms=HOUR, anchor_at=DAY, passed_at=9 * DAY)
    assert past_ticks(schedule, DAY + 2 * HOUR, 5) == [DAY, DAY + HOUR, DAY + 2 * HOUR]
    assert past_ticks(schedule, DAY - 1, 5) == []


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"cron": "0 3 * * *", "zone": "Europe/Berlin"}, "At 03:00 every day (Europe/Berlin)"),
        ({"cron": "@hourly"}, "At the start of every hour (UTC)"),
        ({"every_ms": 5 * 60_000}, "Every 5m"),
        ({"every_ms": 1_500}, "Every 1500ms"),
    ],
)
def test_a_rule_in_words(rule: dict[str, Any], words: str) -> None:
    assert rule_words(Schedule(name="s", job=JOB, **rule)) == words


def test_a_rule_that_cannot_be_explained_is_shown_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: object) -> str:
        raise IndexError

    monkeypatch.setattr("cronsim.CronSim.explain", fail)
    assert rule_words(Schedule(name="s", job=JOB, cron="7 7 7 7 *")) == "7 7 7 7 * (UTC)"
