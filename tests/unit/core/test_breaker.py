"""Breakers: closed, open and half open, by failures in a row or by a share, with back-off."""

import random

import pytest

from holdfast.core import breaker as rules
from holdfast.core.breaker import (
    NO_RESULTS,
    PROBE_MS,
    AttemptResults,
    Breaker,
    BreakerRecord,
    BreakerState,
)

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
FIVE = Breaker(failures=5, cooldown_ms=30_000, cooldown_ms_max=100_000)
HALF = Breaker(share=0.5, calls_min=10, window_ms=60_000)


def seen(text: str) -> AttemptResults:
    """`+` for a success, `-` for a failure, in the order in which they ended."""
    results = NO_RESULTS
    for each in text:
        results = results.plus(good=each == "+", text="boom")
    return results


def after(*batches: str, policy: Breaker = FIVE, age_ms: int = 0) -> BreakerRecord:
    record = BreakerRecord(policy=policy)
    for batch in batches:
        record = rules.count_results(record, seen(batch), policy, age_ms)
    return record


@pytest.mark.parametrize(
    "batches",
    [
        ("-----",),
        ("--", "---"),
        ("-", "-", "-", "-", "-"),
        ("+-----+",),
        ("++-", "----++"),
        ("+--", "---"),
    ],
)
def test_so_many_failures_in_a_row_open_it(batches: tuple[str, ...]) -> None:
    record = after(*batches)
    assert (record.state, record.open_ms, record.openings) == (OPEN, 30_000, 1)
    assert record.last == "boom"


@pytest.mark.parametrize(
    "batches", [("----",), ("--+--",), ("----", "+----"), ("----+", "----"), ("-+-+-+-+-+-",)]
)
def test_fewer_in_a_row_do_not(batches: tuple[str, ...]) -> None:
    assert after(*batches).state is CLOSED


def test_batches_count_as_their_attempts_one_by_one() -> None:
    """The batches of several workers may be cut anywhere."""
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    for _ in range(2_000):
        text = "".join(dice.choice("+--") for _ in range(dice.randrange(1, 30)))
        cuts = sorted(dice.randrange(len(text) + 1) for _ in range(dice.randrange(4)))
        parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        opens = "-----" in text
        record = after(*(part for part in parts if part))
        assert (record.state is OPEN) == opens, f"{parts} with seed {seed}"
        if not opens:
            assert record.streak == len(text) - len(text.rstrip("-")), f"{parts}, seed {seed}"


def test_a_share_needs_enough_attempts() -> None:
    assert after("-" * 9, policy=HALF).state is CLOSED
    assert after("-" * 9 + "+", policy=HALF).state is OPEN
    assert after("-----+++++", policy=HALF).state is OPEN
    assert after("----++++++", policy=HALF).state is CLOSED
    assert after("-----", "+++++", policy=HALF).state is OPEN


def test_an_old_window_does_not_count() -> None:
    assert after("-----", "----", "-", policy=HALF, age_ms=20_000).state is CLOSED
    assert after("-----", "----", "-", policy=HALF, age_ms=19_999).state is OPEN


def test_what_ends_while_it_is_open_changes_nothing() -> None:
    record = after("-----")
    assert rules.count_results(record, seen("+++"), FIVE, 0) == record
    half_open = rules.probing(record, "w")
    assert rules.count_results(half_open, seen("-----"), FIVE, 0) == half_open


def test_one_probe_after_the_cool_down() -> None:
    record = after("-----")
    assert not rules.may_probe(record, 29_999)
    assert rules.left_ms(record, 29_999) == 1
    assert rules.may_probe(record, 30_000)
    mine = rules.probing(record, "w")
    assert (mine.state, mine.prober) == (HALF_OPEN, "w")
    assert not rules.may_probe(mine, PROBE_MS - 1)
    assert rules.may_probe(mine, PROBE_MS), "its worker may be gone"
    assert not rules.may_probe(BreakerRecord(), 10**9)


def test_a_good_probe_closes_it() -> None:
    closed = rules.probed(rules.probing(after("-----"), "w"), "w", good=True)
    assert (closed.state, closed.streak, closed.openings) == (CLOSED, 0, 0)
    assert rules.is_plain(closed)
    assert rules.count_results(closed, seen("-----"), FIVE, 0).open_ms == 30_000, (
        "as the first time"
    )


def test_each_bad_probe_makes_the_cool_down_longer_up_to_its_most() -> None:
    record = after("-----")
    lengths = [record.open_ms]
    for number in range(4):
        probe = rules.probing(record, "w")
        record = rules.probed(probe, "w", good=False, text=f"again {number}")
        lengths.append(record.open_ms)
    assert lengths == [30_000, 60_000, 100_000, 100_000, 100_000]
    assert (record.state, record.last, record.streak) == (OPEN, "again 3", 9)
    huge = rules.probing(BreakerRecord(policy=FIVE, openings=10**6), "w")
    assert rules.probed(huge, "w", good=False).open_ms == 100_000


def test_only_the_prober_decides() -> None:
    theirs = rules.probing(after("-----"), "another")
    assert rules.probed(theirs, "w", good=True) == theirs
    closed = BreakerRecord()
    assert rules.probed(closed, "w", good=False) == closed


def test_by_hand() -> None:
    record = rules.opened_by(BreakerRecord(policy=FIVE), "ada@host")
    assert record.state is OPEN
    assert not rules.may_probe(record, 10**9), "only a person closes it"
    assert rules.left_ms(record, 0) is None
    assert rules.describe(record, "task t") == "the breaker of task t was opened by ada@host"
    assert rules.closed(record) == BreakerRecord(policy=FIVE)


def test_how_it_stands_in_words() -> None:
    record = after("-----")
    assert rules.describe(record, rules.title("task:mail:send")) == (
        "the breaker of task mail:send is open after 5 failures, last: boom"
    )
    assert "half open" in rules.describe(rules.probing(record, "w"), "host a.example:443")
    assert rules.describe(BreakerRecord(), "task t") == "the breaker of task t is closed"
    assert len(NO_RESULTS.plus(good=False, text="x" * 5_000).text) == 200
