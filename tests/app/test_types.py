"""A value of a wrong type is refused by its name, before it reaches an engine."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast import Backoff, Holdfast, JobFilter, NewJob, Note
from holdfast.core.model import Overrides, Queue, Status
from holdfast.core.verdict import BuryWaiting, Complete, Edit, Settlement
from holdfast.errors import (
    InvalidJob,
    InvalidQueue,
    UsageError,
)


class Loop:
    def __init__(self) -> None:
        self.inside = [self]


WRONG: Any = "of the wrong type"
NESTED: list[Any] = []
for _ in range(100_000):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("task", "payload", "options", "says"),
    [
        (3, None, {}, "task: Expected str, got int"),
        (None, None, {}, "task: Expected str"),
        ("t", None, {"queue": 3}, "queue: Expected str, got int"),
        ("t", None, {"queue": b"default"}, "queue: Expected str, got bytes"),
        ("t", None, {"id": 7}, "id: Expected str, got int"),
        ("t", None, {"priority": "high"}, "priority: Expected int, got str"),
        ("t", None, {"priority": True}, "priority: Expected int, got bool"),
        ("t", None, {"priority": 1.5}, "priority: Expected int, got float"),
        ("t", None, {"delay": "soon"}, 'delay "soon": expected a duration'),
        ("t", None, {"delay": -1}, "delay -1 is out of range"),
        ("t", None, {"delay": [1]}, "delay is a list"),
        ("t", None, {"run_at": 5}, "run_at is an int"),
        ("t", None, {"labels": {"a": 1}}, r"labels\[...\]: Expected str, got int"),
        ("t", None, {"labels": {1: "a"}}, "labels"),
        ("t", None, {"labels": "a=b"}, "labels: Expected object, got str"),
        ("t", None, {"max_attempts": "4"}, "max_attempts: Expected int"),
        ("t", None, {"backoff": "2s"}, 'backoff "2s": expected a backoff'),
        ("t", None, {"backoff": {"first": 1}}, "backoff is a dict: give a Backoff"),
        ("t", None, {"key_policy": "maybe"}, "key_policy"),
        ("t", None, {"colour": "red"}, "a job has no colour; it has after, after_on, backoff"),
        ("t", float("nan"), {}, "JSON"),
        ("t", {(1, 2): 3}, {}, "JSON"),
        ("t", object(), {}, "JSON"),
        ("t", "\ud800", {}, "JSON"),
        ("t", NESTED, {}, "nested too deeply"),
    ],
)
async def test_a_wrong_type_is_refused_by_its_name(
    task: Any, payload: Any, options: dict[str, Any], says: str
) -> None:
    async with Holdfast("memory:") as app:
        with pytest.raises(InvalidJob, match=says):
            await app.enqueue(task, payload, **options)


async def test_a_lease_request_of_wrong_types_is_refused(app: Holdfast) -> None:
    for wrong, says in (
        ({"limit": "2"}, "limit: Expected int"),
        ({"limit": 0}, "limit 0"),
        ({"wait": "for ever"}, "wait"),
        ({"tasks": [1]}, "tasks"),
        ({"tasks": "mail"}, "tasks is the text 'mail'"),
        ({"worker": 5}, "worker"),
    ):
        with pytest.raises(UsageError, match=says):
            await app.lease(**wrong)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda app, _: app.get(7), "id is an int: give a str"),
        (lambda app, _: app.cancel(7), r"ids\[0\]: Expected str"),
        (lambda app, _: app.cancel("a", by=7), "by: Expected str"),
        (lambda app, _: app.drop(None), "name is None"),
        (lambda app, _: app.declare(7), "name is an int"),
        (lambda app, _: app.find("a"), "wanted is a str: give a JobFilter"),
        (lambda app, _: app.find(JobFilter(states=WRONG)), "states: Expected array"),
        (lambda app, _: app.find(JobFilter(labels=WRONG)), "labels"),
        (
            lambda app, _: app.find(JobFilter(), limit="5"),
            "limit '5' is out of range: expected 1 to 1000",
        ),
        (lambda app, _: app.find(JobFilter(), limit=1.5), "limit 1.5 is out of range"),
        (lambda app, _: app.find(JobFilter(), after="5"), "after '5' is not a cursor"),
        (
            lambda app, _: app.tally(JobFilter(), "payload"),
            "by 'payload' is not valid: use one of queue",
        ),
        (lambda app, _: app.amend(JobFilter(), "cancel"), "amendment is a str: give a Cancel or"),
        (lambda app, _: app.amend(JobFilter(), Edit(payload=WRONG)), "payload: Expected bytes"),
        (lambda app, _: app.amend(JobFilter(), Edit(priority=WRONG)), "priority: Expected int"),
        (lambda app, _: app.amend(JobFilter(), BuryWaiting(failure=WRONG)), "failure: Expected"),
        (lambda app, _: app.settle([None]), "settlement is None"),
        (lambda app, _: app.settle(7), "expected a list of Settlement, not an int"),
        (lambda app, a: app.settle([Settlement(lease=a, verdict=WRONG)]), "verdict: Expected"),
        (lambda app, a: app.settle([Settlement(lease=a, verdict=Complete(WRONG))]), "result: Exp"),
        (lambda app, a: app.fail(a, 7), "error is an int: give a BaseException or str"),
        (lambda app, _: app.fail("a", "x"), "lease is a str: give a Lease"),
        (lambda app, _: app.renew("a"), "lease is a str"),
        (lambda app, a: app.renew(a, note=Note(progress=WRONG)), "progress: Expected float"),
        (lambda app, a: app.renew(a, note=Note(checkpoint=WRONG)), "checkpoint: Expected bytes"),
        (lambda app, a: app.renew(replace(a, lease_ms=2**80)), "lease_ms"),
        (lambda app, a: app.renew(replace(a, token="x")), "token: Expected int"),
        (lambda app, a: app.complete(a, then=7), "expected a list of NewJob, not an int"),
        (lambda app, _: app.schedules.add("x"), "expected a Schedule, not a str"),
        (lambda app, _: app.schedules.pause(7), "schedule '7' does not exist"),
    ],
)
async def test_nothing_of_a_wrong_type_reaches_the_engine(
    call: Callable[[Any, Any], Awaitable[object]], says: str
) -> None:
    """It could fail there in the middle of other callers' transaction, or be stored."""
    async with Holdfast("memory:") as app:
        await app.enqueue("t", id="a")
        [lease] = await app.lease()
        before = await app.get("a")
        with pytest.raises(UsageError, match=says):
            await call(app, lease)
        after = await app.get("a")
        assert before is not None
        assert after is not None
        assert replace(after, deadline_at=None) == replace(before, deadline_at=None)
        await app.complete(lease)


async def test_a_queue_that_cannot_be_read_back_is_never_written(app: Holdfast) -> None:
    backoff = Backoff()
    msgspec.structs.force_setattr(backoff, "kind", "weird")
    with pytest.raises(InvalidQueue, match="kind"):
        await app.declare("q", backoff=backoff)
    wrong: Any = {"kind": "linear"}
    with pytest.raises(InvalidQueue, match="backoff"):
        await app.engine.declare(Queue(name="q", backoff=wrong))
    receipts = await app.engine.enqueue(
        [NewJob(id="a", task="t", overrides=Overrides(backoff=wrong)), NewJob(id="b", task="t")]
    )
    assert [receipt.status for receipt in receipts] == [Status.REFUSED, Status.NEW]
    assert [view.queue.name for view in await app.queues()] == ["default"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"kind": "weird"}, "kind is 'weird'; use exponential"),
        ({"first_ms": "2s"}, "first_ms is '2s'; use a whole number 0 to"),
        ({"first_ms": 1.5}, "first_ms is 1.5"),
        ({"cap_ms": True}, "cap_ms is True"),
        ({"factor": "2"}, "factor is '2'; use 1 to 100"),
        ({"jitter": None}, "jitter is None; use 0 to 1"),
    ],
)
def test_a_backoff_that_no_store_could_read_back_is_refused(
    wrong: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidQueue, match=says):
        Backoff(**wrong)
