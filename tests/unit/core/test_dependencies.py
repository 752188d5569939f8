"""Parents are ordered before their children, and circular jobs are found."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.dependencies import order_parents_first
from holdfast.core.model import NewJob

edges = st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=8)


def jobs(parents: list[list[int]]) -> list[NewJob]:
    return [
        NewJob(id=f"j{place}", task="t", after=tuple(f"j{parent}" for parent in each))
        for place, each in enumerate(parents)
    ]


def reached(parents: list[list[int]], start: int) -> set[int]:
    """Everybody that `start` waits for, directly or through others of the call."""
    found: set[int] = set()
    ahead = list(parents[start])
    while ahead:
        place = ahead.pop()
        if place < len(parents) and place not in found:
            found.add(place)
            ahead += parents[place]
    return found


@given(edges)
def test_only_jobs_that_wait_for_themselves_are_circular(parents: list[list[int]]) -> None:
    order, circular = order_parents_first(jobs(parents))
    assert sorted(order) == list(range(len(parents)))
    assert set(circular) == {
        place for place in range(len(parents)) if place in reached(parents, place)
    }


@given(edges)
def test_parents_come_first_and_the_order_is_kept_where_it_can_be(
    parents: list[list[int]],
) -> None:
    order, circular = order_parents_first(jobs(parents))
    came: set[int] = set()
    for place in order:
        able = [
            other
            for other in range(len(parents))
            if other not in came
            and (other in circular or all(p in came or p >= len(parents) for p in parents[other]))
        ]
        assert place == min(able)
        came.add(place)


@given(edges)
def test_a_circle_is_one(parents: list[list[int]]) -> None:
    for text in order_parents_first(jobs(parents))[1].values():
        steps = [int(id_.removeprefix("j")) for id_ in text.split(" after ")]
        assert steps[0] == steps[-1]
        assert all(second in parents[first] for first, second in pairwise(steps))


def test_without_parents_nothing_is_moved() -> None:
    assert order_parents_first(jobs([[], [], []])) == ([0, 1, 2], {})


def test_of_one_id_twice_the_first_is_the_parent() -> None:
    twice = [NewJob(id="a", task="t", after=("b",)), NewJob(id="a", task="t")]
    order, circular = order_parents_first([*twice, NewJob(id="b", task="t")])
    assert (order, circular) == ([1, 2, 0], {})


def test_a_long_circle_is_told_in_a_few_words() -> None:
    ring = jobs([[(place + 1) % 1_000] for place in range(1_000)])
    circular = order_parents_first(ring)[1]
    assert len(circular) == 1_000
    assert circular[0].startswith("j0 after j1 after ")
    assert circular[0].endswith(" after … after j0")
    assert len(circular[0]) < 200


@pytest.mark.timeout(60)
def test_all_wait_for_all() -> None:
    """Searching for one circle after the other would take minutes."""
    assert len(order_parents_first(jobs([list(range(1_000))] * 1_000))[1]) == 1_000
