"""Fair turns: by weight, idle tenants first, with a bounded head start."""

from collections import Counter

from holdfast.core.fairness import CREDIT, TURN, FairTurns


def test_lines_take_turns() -> None:
    assert FairTurns().order({"a": 3, "b": 2, "c": 0}, 10, {}) == ["a", "b", "a", "b", "a"]
    assert FairTurns().order({"a": 3, "b": 2}, 3, {}) == ["a", "b", "a"]
    assert FairTurns().order({}, 3, {}) == FairTurns().order({"a": 1}, 0, {}) == []


def test_weights_count() -> None:
    order = FairTurns().order({"a": 1000, "b": 1000}, 400, {"a": 3})
    assert Counter(order) == {"a": 300, "b": 100}
    # Evenly: no three of `a` stand without one of `b` for long.
    assert "aaaa" not in "".join(order)[4:]


def test_order_alone_counts_nothing() -> None:
    turns = FairTurns()
    assert turns.order({"a": 5, "b": 5}, 2, {}) == turns.order({"a": 5, "b": 5}, 2, {})


def test_who_was_quiet_comes_first_for_a_while() -> None:
    turns = FairTurns()
    for _ in range(1000):
        turns.took("noisy")
    order = turns.order({"noisy": 1000, "quiet": 1000}, 1000, {})
    ahead = CREDIT // TURN
    assert order[:ahead] == ["quiet"] * ahead
    assert Counter(order[ahead : ahead + 100])["noisy"] in (49, 50, 51)


def test_lines_that_are_gone_are_forgotten() -> None:
    turns = FairTurns()
    for _ in range(500):
        turns.took("gone")
    turns.forget_others(["here"])
    turns.took("here")
    assert turns.order({"gone": 2, "here": 2}, 4, {})[0] == "gone"
