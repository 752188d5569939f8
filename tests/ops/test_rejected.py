"""Rejected messages of other programs: kept as dead letters, whole, once, and after a kill."""

import json

import pytest

from holdfast.core.model import Job, JobFilter, NewJob, Queue, Reason, State
from holdfast.core.verdict import Amendment, Redrive
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import NotAccepting
from holdfast.ops.rejected import REJECTED_ID_MAX, REJECTED_QUEUE, Rejection, keep_rejected
from holdfast.testing.clock import ManualClock
from tests.killed import Killed

MIB = 1024 * 1024


def rejection(id: str = "gate:g:1", **fields: object) -> Rejection:
    given = {"why": "no task", "by": "gate g", **fields}
    return Rejection(id=id, **given)  # type: ignore[arg-type]


async def letters(engine: Engine) -> list[Job]:
    """The dead letters, whole, in the order of their arrival."""
    wanted = JobFilter(queue=REJECTED_QUEUE)
    found = [
        await engine.get(job.id) for job in (await engine.find(wanted, limit=1_000)).jobs[::-1]
    ]
    jobs = [job for job in found if job is not None]
    assert {(job.state, job.reason) for job in jobs} <= {(State.DEAD, Reason.REJECTED)}
    return jobs


@pytest.mark.parametrize("body", [b"", b"\0" * 1000, b"\xff{", b"x" * MIB])
async def test_bytes_and_headers_are_kept(engine: Engine, body: bytes) -> None:
    headers = {"kind": "odd", "nested": '{"a":[1,{"b":null}]}', "é\n": "ü\r\n"}
    given = rejection(body=body, content_type="text/x-odd", headers=headers)
    await keep_rejected(engine, [given])
    [letter] = await letters(engine)
    assert (letter.id, letter.payload, letter.content_type) == (given.id, body, "text/x-odd")
    assert letter.headers == headers
    [event] = letter.events
    assert event.by == "gate g"
    assert event.failure is not None
    assert event.failure.message == "no task"


@pytest.mark.parametrize(
    "headers",
    [
        {f"h{n}": str(n) for n in range(10_000)},
        {"nul": "a\0b"},
        {"": "no name"},
        {"long": "x" * 5_000},
        {"n" * 300: "x"},
        {"lone": "\ud800"},
    ],
    ids=["many", "nul", "unnamed", "long", "long name", "surrogate"],
)
async def test_headers_that_no_job_can_have_are_kept_apart(
    engine: Engine, headers: dict[str, str]
) -> None:
    await keep_rejected(engine, [rejection(body=b"body", content_type="a/b", headers=headers)])
    body, apart = await letters(engine)
    assert (body.payload, body.headers, body.labels["part"]) == (b"body", {}, "1 of 2")
    assert json.loads(apart.payload) == {"content_type": "a/b", "headers": headers}


async def test_a_content_type_that_no_job_can_have_is_kept_apart(engine: Engine) -> None:
    await keep_rejected(engine, [rejection(content_type="é" * 200)])
    _, apart = await letters(engine)
    assert json.loads(apart.payload)["content_type"] == "é" * 200


async def test_a_body_larger_than_any_payload_is_kept_in_parts(engine: Engine) -> None:
    body = bytes(range(256)) * (MIB // 256 * 2) + b"end"
    id_ = "x" * REJECTED_ID_MAX
    await keep_rejected(engine, [rejection(id_, body=body)])
    parts = await letters(engine)
    assert b"".join(part.payload for part in parts) == body
    assert [part.labels["part"] for part in parts] == ["1 of 3", "2 of 3", "3 of 3"]
    assert [part.id for part in parts] == [id_, f"{id_}.part2", f"{id_}.part3"]


async def test_a_repetition_adds_nothing(engine: Engine) -> None:
    for _ in range(2):
        await keep_rejected(engine, [rejection("a"), rejection("b", why="other")])
    first, second = await letters(engine)
    assert (first.version, second.version) == (2, 2)


async def test_a_letter_that_was_put_back_stays_so(engine: Engine) -> None:
    await keep_rejected(engine, [rejection()])
    await engine.amend(JobFilter(ids=("gate:g:1",)), Redrive(), limit=1)
    await keep_rejected(engine, [rejection()])
    job = await engine.get("gate:g:1")
    assert job is not None
    assert job.state is State.WAITING


async def test_a_job_with_the_same_id_in_another_queue_is_left_alone(engine: Engine) -> None:
    await engine.enqueue([NewJob(id="gate:g:1", task="t")])
    await keep_rejected(engine, [rejection()])
    job = await engine.get("gate:g:1")
    assert job is not None
    assert (job.state, job.queue) == (State.WAITING, "default")


class KillableEngine(MemoryEngine):
    """Ends the process instead of the bury."""

    killed = False

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        if self.killed:
            raise Killed
        return await super().amend(wanted, amendment, limit=limit)


async def test_killed_before_the_bury_the_next_call_completes_it(clock: ManualClock) -> None:
    engine = KillableEngine(clock=clock)
    await engine.open()
    engine.killed = True
    with pytest.raises(Killed):
        await keep_rejected(engine, [rejection()])
    engine.killed = False
    await keep_rejected(engine, [rejection()])
    assert len(await letters(engine)) == 1


async def test_a_closed_queue_is_an_error(engine: Engine) -> None:
    await engine.declare(Queue(name=REJECTED_QUEUE, accepting=False))
    with pytest.raises(NotAccepting):
        await keep_rejected(engine, [rejection()])
