"""Move tasks: the actions, the rate, and the service that continues after a crash."""

import asyncio
import base64
import json
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.model import JobFilter, NewJob, Record, State
from holdfast.engines.base import Engine
from holdfast.ops.queues import update_queue
from holdfast.ops.sqs import MOVE_TASKS, MoveTask, MoveTasks
from holdfast.server.sqs import moves
from holdfast.server.sqs.moves import BATCH, TAKEOVER_MS, MessageMover
from tests.server.sqs.sqs_client import ACCOUNT, SqsClient, SqsRefused

PREFIX = f"arn:aws:sqs:us-east-1:{ACCOUNT}:"
DEAD, OTHER = f"{PREFIX}dead", f"{PREFIX}other"


async def fill(sqs: SqsClient, count: int) -> None:
    """A queue whose messages are all dead letters."""
    await sqs.create("dead")
    await sqs.create("other")
    policy = json.dumps({"deadLetterTargetArn": DEAD, "maxReceiveCount": 1})
    url = await sqs.create("orders", RedrivePolicy=policy, VisibilityTimeout="0")
    for number in range(count):
        await sqs.ask("SendMessage", QueueUrl=url, MessageBody=str(number))
    for _ in range(2):
        for _ in range(count):
            await sqs.ask("ReceiveMessage", QueueUrl=url)
    assert await bodies(sqs, "dead") == sorted(map(str, range(count)))


async def bodies(sqs: SqsClient, queue: str) -> list[str]:
    found: list[str] = []
    after: int | None = None
    while True:
        page = await sqs.store.find(JobFilter(queue=queue), limit=1_000, after=after)
        found += [job.payload.decode() for job in page.jobs]
        after = page.after
        if after is None:
            return sorted(found)


@pytest.fixture(autouse=True)
def first_step(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Without the step that StartMessageMoveTask takes itself. The value brings it back."""
    step = MessageMover.step

    async def wait(*_: object) -> None:
        pass

    monkeypatch.setattr(MessageMover, "step", wait)
    return lambda: monkeypatch.setattr(MessageMover, "step", step)


async def test_a_small_queue_is_moved_at_once(sqs: SqsClient, first_step: Any) -> None:
    first_step()
    await fill(sqs, 2)
    assert await tasks(sqs) == []
    for rate in (2, 3):
        handle = await start(sqs, DestinationArn=OTHER, MaxNumberOfMessagesPerSecond=rate)
        [task] = await tasks(sqs)
        assert (task["Status"], task["MaxNumberOfMessagesPerSecond"]) == ("COMPLETED", rate)
        error = await refusal(sqs, "CancelMessageMoveTask", TaskHandle=handle)
        assert error.status == 404
    assert await bodies(sqs, "other") == ["0", "1"]


async def start(sqs: SqsClient, **members: Any) -> str:
    answer = await sqs.ask("StartMessageMoveTask", SourceArn=DEAD, **members)
    handle: str = answer["TaskHandle"]
    return handle


async def tasks(sqs: SqsClient, **members: Any) -> list[dict[str, Any]]:
    answer = await sqs.ask("ListMessageMoveTasks", SourceArn=DEAD, **members)
    found: list[dict[str, Any]] = answer.get("Results", [])
    return found


def mover(sqs: SqsClient) -> MessageMover:
    return MessageMover(lambda: sqs.store)


async def run_to_the_end(sqs: SqsClient) -> None:
    service = mover(sqs)
    for _ in range(100):
        if await service.once() is None:
            return
    raise AssertionError("the task does not end")


async def refusal(sqs: SqsClient, action: str, **members: Any) -> SqsRefused:
    with pytest.raises(SqsRefused) as refused:
        await sqs.ask(action, **members)
    return refused.value


async def test_dead_letters_return_to_their_queue_as_new_messages(sqs: SqsClient) -> None:
    await fill(sqs, 3)
    before = {job.id for job in (await sqs.store.find(JobFilter(queue="dead"), limit=9)).jobs}
    sqs.clock.advance(60_000)
    await start(sqs)
    [task] = await tasks(sqs)
    assert task["Status"] == "RUNNING"
    assert task["ApproximateNumberOfMessagesToMove"] == 3
    assert "DestinationArn" not in task
    await run_to_the_end(sqs)
    [task] = await tasks(sqs)
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 3)
    assert "TaskHandle" not in task
    assert await bodies(sqs, "dead") == []
    jobs = (await sqs.store.find(JobFilter(queue="orders"), limit=9)).jobs
    assert sorted(job.payload.decode() for job in jobs) == ["0", "1", "2"]
    for job in jobs:
        assert (job.state, job.attempt) == (State.WAITING, 0)
        assert job.created_at == sqs.clock.wall_ms()
        assert job.id not in before


async def test_messages_are_moved_only_to_a_queue_of_the_same_type(sqs: SqsClient) -> None:
    """A message without a group has no place in a FIFO queue."""
    await fill(sqs, 1)
    await sqs.create("other.fifo", FifoQueue="true")
    error = await refusal(
        sqs, "StartMessageMoveTask", SourceArn=DEAD, DestinationArn=f"{OTHER}.fifo"
    )
    assert (error.code, error.status) == ("InvalidParameterValue", 400)
    assert await tasks(sqs) == []


async def test_messages_are_moved_to_another_queue(sqs: SqsClient) -> None:
    await fill(sqs, 2)
    # A message that was sent to the dead-letter queue, and never died, is moved too.
    await sqs.ask("SendMessage", QueueUrl=f"/{ACCOUNT}/dead", MessageBody="sent")
    await start(sqs, DestinationArn=OTHER)
    await run_to_the_end(sqs)
    assert await bodies(sqs, "other") == ["0", "1", "sent"]
    [task] = await tasks(sqs)
    assert task["DestinationArn"] == OTHER
    assert task["ApproximateNumberOfMessagesMoved"] == 3


async def test_a_message_without_a_source_fails_the_task(sqs: SqsClient) -> None:
    await fill(sqs, 1)
    await sqs.ask("SendMessage", QueueUrl=f"/{ACCOUNT}/dead", MessageBody="sent")
    await start(sqs)
    await run_to_the_end(sqs)
    [task] = await tasks(sqs)
    assert task["Status"] == "FAILED"
    assert task["FailureReason"] == "CouldNotDetermineMessageSource"
    assert await bodies(sqs, "orders") == ["0"]
    assert await bodies(sqs, "dead") == ["sent"]
    [job] = (await sqs.store.find(JobFilter(queue="dead"), limit=9)).jobs
    assert (job.state, job.attempt) == (State.WAITING, 0)


async def test_a_task_fails_when_its_destination_is_gone(sqs: SqsClient) -> None:
    await fill(sqs, 2)
    await start(sqs, DestinationArn=OTHER)
    await sqs.ask("DeleteQueue", QueueUrl=f"/{ACCOUNT}/other")
    await run_to_the_end(sqs)
    [task] = await tasks(sqs)
    assert task["Status"] == "FAILED"
    assert task["FailureReason"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert await bodies(sqs, "dead") == ["0", "1"]


async def test_a_queue_has_one_task_at_a_time(sqs: SqsClient) -> None:
    await fill(sqs, 1)
    started = await asyncio.gather(*(start(sqs) for _ in range(4)), return_exceptions=True)
    assert sum(isinstance(each, str) for each in started) == 1
    refused = [each for each in started if isinstance(each, SqsRefused)]
    assert {each.code for each in refused} == {"InvalidParameterValue"}
    assert refused[0].message.startswith("There is already a task running.")
    await run_to_the_end(sqs)
    for _ in range(12):
        sqs.clock.advance(1_000)
        await start(sqs)
        await run_to_the_end(sqs)
    assert len(await tasks(sqs)) == 1
    found = await tasks(sqs, MaxResults=10)
    assert len(found) == 10
    times = [each["StartedTimestamp"] for each in found]
    assert times == sorted(times, reverse=True)


async def test_a_cancelled_task_stops(sqs: SqsClient) -> None:
    await fill(sqs, 3)
    handle = await start(sqs, MaxNumberOfMessagesPerSecond=1)
    service = mover(sqs)
    await service.once()
    answer = await sqs.ask("CancelMessageMoveTask", TaskHandle=handle)
    assert answer == {"ApproximateNumberOfMessagesMoved": 1}
    assert (await tasks(sqs))[0]["Status"] == "CANCELLING"
    sqs.clock.advance(10_000)
    await service.once()
    assert (await tasks(sqs))[0]["Status"] == "CANCELLED"
    sqs.clock.advance(10_000)
    await service.once()
    assert len(await bodies(sqs, "dead")) == 2
    error = await refusal(sqs, "CancelMessageMoveTask", TaskHandle=handle)
    assert (error.status, error.message) == (404, "Task does not exist.")


async def test_a_task_waits_while_the_queue_is_paused(sqs: SqsClient) -> None:
    await fill(sqs, 2)
    await update_queue(sqs.store, "dead", {"paused": True})
    await start(sqs)
    service = mover(sqs)
    assert await service.once() == 1_000
    assert (await tasks(sqs))[0]["Status"] == "RUNNING"
    await update_queue(sqs.store, "dead", {"paused": False})
    await run_to_the_end(sqs)
    assert await bodies(sqs, "orders") == ["0", "1"]


async def test_a_rate_is_kept(sqs: SqsClient) -> None:
    await fill(sqs, 9)
    await start(sqs, MaxNumberOfMessagesPerSecond=2)
    service = mover(sqs)
    moved: list[int] = []
    for _ in range(6):
        next_ms = await service.once()
        # Steps between the times that the service asks for move nothing.
        await service.once()
        moved.append(9 - len(await bodies(sqs, "dead")))
        sqs.clock.advance(500)
        assert next_ms is None or next_ms <= 1_000
    # One second's worth at first, then two a second.
    assert moved == [2, 3, 4, 5, 6, 7]


async def test_many_messages_are_moved_in_batches(sqs: SqsClient) -> None:
    await fill(sqs, 1)
    count = 2 * BATCH + 7
    jobs = [NewJob(id=f"j{n}", task="t", queue="dead", payload=b"x") for n in range(count)]
    await sqs.store.enqueue(jobs)
    await start(sqs, DestinationArn=OTHER)
    await run_to_the_end(sqs)
    assert len(await bodies(sqs, "other")) == count + 1
    assert (await tasks(sqs))[0]["ApproximateNumberOfMessagesMoved"] == count + 1


async def test_several_movers_move_each_message_once(sqs: SqsClient) -> None:
    await fill(sqs, 1)
    count = 3 * BATCH
    await sqs.store.enqueue(
        [NewJob(id=f"j{n}", task="t", queue="dead", payload=b"%d" % n) for n in range(count)]
    )
    await start(sqs, DestinationArn=OTHER)
    movers = [mover(sqs) for _ in range(4)]
    for _ in range(10):
        await asyncio.gather(*(each.once() for each in movers))
    assert (await tasks(sqs))[0]["Status"] == "COMPLETED"
    assert (await tasks(sqs))[0]["ApproximateNumberOfMessagesMoved"] == count + 1
    assert await bodies(sqs, "other") == sorted(["0", *(str(n) for n in range(count))])


@pytest.mark.parametrize("verb", ["lease", "settle", "save"])
async def test_another_mover_continues_after_a_crash(
    sqs: SqsClient, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first mover dies right after a verb of its step took effect."""
    await fill(sqs, 5)
    await start(sqs)
    service = mover(sqs)
    store = sqs.store
    dying = _Dying(store, verb, after=2 if verb == "save" else 1)
    monkeypatch.setattr(service, "_engine", lambda: dying)
    with pytest.raises(KeyboardInterrupt):
        await service.once()
    second = mover(sqs)
    if verb != "save":
        # The step is left to the first one for a while.
        assert await second.once() == TAKEOVER_MS
    sqs.clock.advance(TAKEOVER_MS)
    await end_overdue(store)
    for _ in range(4):
        await second.once()
    assert (await tasks(sqs))[0]["Status"] == "COMPLETED"
    assert await bodies(sqs, "orders") == ["0", "1", "2", "3", "4"]
    assert await bodies(sqs, "dead") == []


async def end_overdue(store: Engine) -> None:
    from holdfast.ops.workers import end_overdue_and_expired

    await end_overdue_and_expired(store, 100)


class _Dying:
    """An engine whose process dies after the nth call of one verb."""

    def __init__(self, engine: Engine, verb: str, *, after: int) -> None:
        self._engine = engine
        self._verb = verb
        self._left = after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        if name != self._verb:
            return found

        async def call(*args: Any, **named: Any) -> Any:
            answer = await found(*args, **named)
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt
            return answer

        return call


async def test_wrong_requests_are_refused(sqs: SqsClient) -> None:
    await fill(sqs, 0)
    for source, status, text in (
        ("nonsense", 400, "You must use this format to specify the SourceArn"),
        (f"{PREFIX}missing", 404, "SourceArn parameter doesn't exist"),
        (f"arn:aws:sqs:eu-west-1:{ACCOUNT}:dead", 404, "SourceArn parameter doesn't exist"),
        (f"{PREFIX}orders", 400, "Source queue must be configured as a Dead Letter Queue."),
    ):
        error = await refusal(sqs, "StartMessageMoveTask", SourceArn=source)
        assert error.status == status, source
        assert text in error.message
    for members, status in (
        ({"DestinationArn": f"{PREFIX}missing"}, 404),
        ({"DestinationArn": DEAD}, 400),
        ({"MaxNumberOfMessagesPerSecond": 0}, 400),
        ({"MaxNumberOfMessagesPerSecond": 501}, 400),
    ):
        error = await refusal(sqs, "StartMessageMoveTask", SourceArn=DEAD, **members)
        assert error.status == status, members
    error = await refusal(sqs, "ListMessageMoveTasks", SourceArn=DEAD, MaxResults=11)
    assert error.code == "InvalidParameterValue"
    assert await tasks(sqs) == []


@pytest.mark.parametrize(
    "handle",
    [
        "",
        "x",
        "é",
        base64.b64encode(b"{}").decode(),
        base64.b64encode(b"[" * 10_000).decode(),
        base64.b64encode(json.dumps({"taskId": "1", "sourceArn": "x"}).encode()).decode(),
    ],
)
async def test_an_invalid_task_handle_is_refused(sqs: SqsClient, handle: str) -> None:
    error = await refusal(sqs, "CancelMessageMoveTask", TaskHandle=handle)
    assert error.status == 400


async def test_a_source_of_another_account_does_not_exist(sqs: SqsClient) -> None:
    arn = "arn:aws:sqs:us-east-1:123456789012:dead"
    data = json.dumps({"taskId": "0" * 32, "sourceArn": arn}).encode()
    for action, members in (
        ("StartMessageMoveTask", {"SourceArn": arn}),
        ("ListMessageMoveTasks", {"SourceArn": arn}),
        ("CancelMessageMoveTask", {"TaskHandle": base64.b64encode(data).decode()}),
    ):
        error = await refusal(sqs, action, **members)
        assert (error.status, error.shape) == (404, "ResourceNotFoundException")


async def test_the_handle_of_another_task_does_not_exist(sqs: SqsClient) -> None:
    await fill(sqs, 0)
    await start(sqs)
    data = json.dumps({"taskId": "0" * 32, "sourceArn": DEAD}).encode()
    other = base64.b64encode(data).decode()
    error = await refusal(sqs, "CancelMessageMoveTask", TaskHandle=other)
    assert (error.status, error.shape) == (404, "ResourceNotFoundException")


async def test_an_unreadable_record_does_not_hold_up_the_others(sqs: SqsClient) -> None:
    await fill(sqs, 1)
    await sqs.store.save([Record(kind="sqs-moves", key="a", value=b"{")])
    await start(sqs)
    await run_to_the_end(sqs)
    assert (await tasks(sqs))[0]["Status"] == "COMPLETED"


async def test_old_tasks_are_forgotten(sqs: SqsClient) -> None:
    await fill(sqs, 0)
    await start(sqs)
    await run_to_the_end(sqs)
    sqs.clock.advance(moves._RETENTION_MS + 1)
    await mover(sqs).once()
    assert await tasks(sqs) == []


async def test_a_deleted_queue_loses_its_tasks(sqs: SqsClient) -> None:
    await fill(sqs, 1)
    await start(sqs)
    await sqs.ask("DeleteQueue", QueueUrl=f"/{ACCOUNT}/dead")
    assert await MOVE_TASKS.read(sqs.store, "dead") is None


def test_the_rate_of_a_stored_task_is_bounded_by_its_burst() -> None:
    """A record that claims to be far ahead waits for one second's worth, not for years."""
    task = MoveTask(id="1", source_arn=DEAD, started_at=0, rate=10, ahead_us=2**62)
    assert moves.moves_allowed(task, age_ms=1_000) == 10
    known = MoveTasks(tasks=(task,))
    assert moves.with_task(known, replace(task, moved=1)).tasks[0].moved == 1
