"""New jobs and held keys, and whether follow-up jobs can be enqueued."""

from collections.abc import Container
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import dependencies, lifecycle
from holdfast.core.limits import Limit
from holdfast.core.model import Job, KeyPolicy, NewJob, Queue, State
from holdfast.errors import InvalidJob, PayloadTooLarge

QUEUE = Queue(name="q", payload_max=20)


def new(id: str, **fields: Any) -> NewJob:
    return NewJob(**{"id": id, "task": "t", "queue": "q", **fields})


def waiting(**fields: Any) -> Job:
    return lifecycle.admit(new("old", key="k", payload=b'{"a":1}', **fields), 1, 0)


def test_a_known_job_gets_no_new_parents() -> None:
    jobs = [new("a", after=("b",)), new("b", after=("a",)), new("c")]
    assert set(dependencies.arrange(jobs, ())[1]) == {0, 1}
    assert dependencies.arrange(jobs, {"b"}) == ([1, 0, 2], {})


@pytest.mark.parametrize(
    ("policy", "payload"), [("keep", None), ("replace", b'{"b":2}'), ("merge", b'{"a":1,"b":2}')]
)
def test_a_waiting_holder_takes_over_what_the_policy_says(
    policy: KeyPolicy, payload: bytes | None
) -> None:
    later = new("later", key="k", key_policy=policy, payload=b'{"b":2}')
    change = lifecycle.apply_key_policy(waiting(), later, QUEUE, 5)
    assert (None if change is None else change.job.payload) == payload
    assert (
        lifecycle.apply_key_policy(replace(waiting(), state=State.LEASED), later, QUEUE, 5) is None
    )


def test_what_a_holder_cannot_become_is_refused() -> None:
    large = new("later", key="k", key_policy="merge", payload=b'{"b":"0123456789"}')
    with pytest.raises(PayloadTooLarge):
        lifecycle.apply_key_policy(waiting(), large, QUEUE, 5)
    laned = replace(QUEUE, limits=(Limit(name="l", key="{region}", concurrency=1),))
    nowhere = new("later", key="k", key_policy="replace", payload=b"{}")
    with pytest.raises(InvalidJob, match="region"):
        lifecycle.apply_key_policy(waiting(), nowhere, laned, 5)


def could(*then: NewJob, there: Container[str] = (), held: Container[str] = ()) -> bool:
    return dependencies.can_enqueue_follow_ups(
        then,
        dependencies.arrange(then, there),
        queue_of=lambda _: QUEUE,
        is_known=lambda id_: id_ in there,
        is_held=lambda job: job.key in held,
        is_orphan=lambda job, coming: any(p not in there and p not in coming for p in job.after),
    )


def test_who_may_follow() -> None:
    assert could(new("a"), new("b", after=("a",)), new("c", after=("there",)), there={"there"})
    assert could(new("b", after=("a",)), new("a")), "in any order"
    assert not could(new("a", after=("missing",)))
    assert not could(new("a", after=("b",)), new("b", after=("a",)))


def test_who_is_passed_over_needs_no_parents_and_is_none() -> None:
    assert could(new("a", after=("missing",)), there={"a"})
    assert could(new("a", key="k", after=("missing",)), held={"k"})
    assert could(new("a", key="k"), new("b", key="k", after=("missing",)))
    assert not could(new("a", key="k"), new("b", after=("a",)), held={"k"})
    assert not could(new("a", key="k", after=("a",)), held={"k"}), "no job waits for itself"
