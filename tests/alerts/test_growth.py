"""Growth within a minute: never too high, also when parts were unreachable or counts restart."""

from holdfast.alerts.facts import Growth, GrowthTracker
from holdfast.telemetry.accounts import FleetTotals
from holdfast.telemetry.meter import OTHER, QueueTotals, Totals


def fleet(epoch: str = "e", **dead: int) -> FleetTotals:
    queues = {name: QueueTotals({"dead": count}) for name, count in dead.items()}
    return FleetTotals(epoch=epoch, totals=Totals(queues=queues))


def test_growth_is_counted_over_a_minute() -> None:
    tracker = GrowthTracker()
    assert tracker.observe(0, fleet(a=1_000)) == {"a": Growth(0)}
    assert tracker.observe(30_000, fleet(a=1_007)) == {"a": Growth(7)}
    assert tracker.observe(60_000, fleet(a=1_010)) == {"a": Growth(10)}
    assert tracker.observe(61_000, fleet(a=1_010)) == {"a": Growth(3)}
    assert tracker.observe(200_000, fleet(a=1_050)) == {"a": Growth(0)}


def test_a_new_queue_grows_from_zero() -> None:
    tracker = GrowthTracker()
    tracker.observe(0, fleet(a=1))
    assert tracker.observe(5_000, fleet(a=1, b=12)) == {"a": Growth(0), "b": Growth(12)}


def test_counts_that_come_back_are_no_growth() -> None:
    tracker = GrowthTracker()
    tracker.observe(0, fleet(a=100))
    assert tracker.observe(5_000, fleet(a=20)) == {"a": Growth(0)}
    assert tracker.observe(10_000, fleet()) == {"a": Growth(0)}
    assert tracker.observe(15_000, fleet(a=101)) == {"a": Growth(1)}


def test_a_part_that_was_unreachable_from_the_start() -> None:
    tracker = GrowthTracker()
    tracker.observe(0, fleet(a=20), ["p2"])
    assert tracker.observe(5_000, fleet(a=100), []) == {"a": Growth(0)}
    assert tracker.observe(10_000, fleet(a=112), []) == {"a": Growth(12)}


def test_restarted_counts_are_not_compared_with_earlier_ones() -> None:
    tracker = GrowthTracker()
    tracker.observe(0, fleet(a=100))
    assert tracker.observe(5_000, fleet("f", a=300)) == {"a": Growth(0)}


def labelled(**dead: int) -> FleetTotals:
    return fleet("e", **{OTHER if name == "other" else name: each for name, each in dead.items()})


def test_a_queue_that_loses_its_label_has_not_made_the_others_grow() -> None:
    tracker = GrowthTracker()
    tracker.observe(0, labelled(a=50, b=100, other=7))
    found = tracker.observe(5_000, labelled(b=100, c=1, other=58))
    assert found == {"a": Growth(0), "b": Growth(0), "c": Growth(1), OTHER: Growth(1)}
    assert tracker.observe(10_000, labelled(b=100, c=1, other=60))[OTHER] == Growth(3)
    assert tracker.observe(64_000, labelled(b=100, c=1, other=60))[OTHER] == Growth(2)


def test_a_queue_that_gets_a_label_has_not_grown_by_what_it_counted_before() -> None:
    tracker = GrowthTracker()
    tracker.observe(0, labelled(a=50, other=70))
    assert tracker.observe(5_000, labelled(a=50, b=30, other=40))["b"] == Growth(0)
    assert tracker.observe(10_000, labelled(a=50, b=33, other=40))["b"] == Growth(3)
