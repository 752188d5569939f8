"""What grew within a minute: never too much, whatever was away or began anew."""

from holdfast.alerts.growth import Grower
from holdfast.alerts.judging import Growth
from holdfast.telemetry.accounts import Fleet
from holdfast.telemetry.totals import QueueTotals, Totals


def fleet(epoch: str = "e", **dead: int) -> Fleet:
    queues = {name: QueueTotals({"dead": count}) for name, count in dead.items()}
    return Fleet(epoch=epoch, totals=Totals(queues=queues))


def test_it_is_counted_over_a_minute() -> None:
    grower = Grower()
    assert grower.look(0, fleet(a=1_000)) == {"a": Growth(0)}
    assert grower.look(30_000, fleet(a=1_007)) == {"a": Growth(7)}
    assert grower.look(60_000, fleet(a=1_010)) == {"a": Growth(10)}
    assert grower.look(61_000, fleet(a=1_010)) == {"a": Growth(3)}
    assert grower.look(200_000, fleet(a=1_050)) == {"a": Growth(0)}


def test_a_new_queue_had_counted_nothing() -> None:
    grower = Grower()
    grower.look(0, fleet(a=1))
    assert grower.look(5_000, fleet(a=1, b=12)) == {"a": Growth(0), "b": Growth(12)}


def test_what_was_away_has_not_died_again() -> None:
    grower = Grower()
    grower.look(0, fleet(a=100))
    assert grower.look(5_000, fleet(a=20)) == {"a": Growth(0)}
    assert grower.look(10_000, fleet()) == {"a": Growth(0)}
    assert grower.look(15_000, fleet(a=101)) == {"a": Growth(1)}


def test_a_part_that_was_away_from_the_start() -> None:
    grower = Grower()
    grower.look(0, fleet(a=20), ["p2"])
    assert grower.look(5_000, fleet(a=100), []) == {"a": Growth(0)}
    assert grower.look(10_000, fleet(a=112), []) == {"a": Growth(12)}


def test_counts_that_began_anew_are_compared_with_none_before() -> None:
    grower = Grower()
    grower.look(0, fleet(a=100))
    assert grower.look(5_000, fleet("f", a=300)) == {"a": Growth(0)}
