"""Random histories of FIFO and standard queues against a small model of what AWS promises.

The model says which messages a receive may return; the order between groups is left open. Time
passes by a manual clock, and the reaper runs whenever it passes.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.server.sqs.message_calls import delete, hide, reap, receive, send
from tests.server.sqs.sqs_client import SqsClient, SqsRefused, sqs_server

DEDUP_MS = 300_000
VISIBILITY_S = 30
RECEIVES_MAX = 3
GROUPS = "abc"
FIFO = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}


@dataclass
class Message:
    """A message as the model knows it. It is hidden until `hidden_until`: by the consumer that
    holds it, or by one that hid it again after its timeout."""

    id: str
    body: str
    group: str
    hidden_until: int = 0
    is_held: bool = False
    receives: int = 0
    handles: list[str] = field(default_factory=list)


class Model(RuleBasedStateMachine):
    is_fifo = True

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.server = sqs_server()
        self.sqs: SqsClient = self.run(self.server.__aenter__())
        self.waiting: list[Message] = []
        self.dead: list[str] = []
        self.deleted: list[Message] = []
        self.sent: dict[str, int] = {}
        """The time of the first send of each body within the window."""

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        self.run(self.server.__aexit__(None, None, None))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    @property
    def now(self) -> int:
        return self.sqs.clock.wall_ms()

    @initialize()
    def create(self) -> None:
        more = FIFO if self.is_fifo else {}
        end = ".fifo" if self.is_fifo else ""
        self.dead_url = self.run(self.sqs.create(f"dead{end}", **more))
        arn = self.run(self.sqs.attributes(self.dead_url, "QueueArn"))["QueueArn"]
        policy = f'{{"deadLetterTargetArn":"{arn}","maxReceiveCount":{RECEIVES_MAX}}}'
        self.url = self.run(
            self.sqs.create(
                f"orders{end}", RedrivePolicy=policy, VisibilityTimeout=str(VISIBILITY_S), **more
            )
        )

    @rule(number=st.integers(0, 30), group=st.sampled_from(GROUPS))
    def send(self, number: int, group: str) -> None:
        body = f"{group}{number}"
        is_duplicate = self.is_fifo and self.now < self.sent.get(body, -DEDUP_MS) + DEDUP_MS
        answer = self.run(send(self.sqs, self.url, body, MessageGroupId=group))
        known = {each.id for each in (*self.waiting, *self.deleted)} | set(self.dead)
        assert (answer["MessageId"] in known) is is_duplicate
        if not is_duplicate:
            self.sent[body] = self.now
            self.waiting.append(Message(answer["MessageId"], body, group))

    @rule(most=st.integers(1, 10), visibility_s=st.sampled_from([0, 10, VISIBILITY_S]))
    def receive(self, most: int, visibility_s: int) -> None:
        found = self.run(
            receive(self.sqs, self.url, MaxNumberOfMessages=most, VisibilityTimeout=visibility_s)
        )
        blocked = self._blocked()
        visible = [each for each in self.waiting if each.hidden_until <= self.now]
        may_be_received = [each for each in visible if each.group not in blocked]
        by_id = {each.id: each for each in may_be_received}
        taken: list[Message] = []
        for received in found:
            message = by_id.get(received["MessageId"])
            assert message is not None, f"{received['Body']} must not be received now"
            assert message.body == received["Body"]
            assert message not in taken
            assert message.receives < RECEIVES_MAX
            if self.is_fifo:
                own = [each for each in may_be_received if each.group == message.group]
                earlier = own[: own.index(message)]
                assert all(each in taken or each.receives >= RECEIVES_MAX for each in earlier), (
                    f"{message.body} is received before an earlier message of its group"
                )
            message.receives += 1
            message.handles.append(received["ReceiptHandle"])
            message.hidden_until = self.now + visibility_s * 1_000
            message.is_held = visibility_s > 0
            count = int(received["Attributes"]["ApproximateReceiveCount"])
            assert count == message.receives
            taken.append(message)
        self._bury(may_be_received)
        # Messages that are past their receives make room for others only in the next receive.
        if not taken:
            assert all(each.receives >= RECEIVES_MAX for each in may_be_received)

    def _blocked(self) -> set[str]:
        """Groups of which a message is in flight."""
        if not self.is_fifo:
            return set()
        return {each.group for each in self.waiting if each.hidden_until > self.now}

    def _bury(self, visible: list[Message]) -> None:
        """Move the messages that the server has moved: only those past their receives."""
        view = self.run(self.sqs.attributes(self.dead_url, "ApproximateNumberOfMessages"))
        moved = int(view["ApproximateNumberOfMessages"]) - len(self.dead)
        exhausted = [each for each in visible if each.receives >= RECEIVES_MAX]
        assert 0 <= moved <= len(exhausted)
        for message in exhausted if moved else ():
            job = self.run(self.sqs.store.get(message.id))
            if job.queue.startswith("dead"):
                self.waiting.remove(message)
                self.dead.append(message.id)

    @precondition(lambda self: any(each.handles for each in self.waiting))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        message = data.draw(st.sampled_from([each for each in self.waiting if each.handles]))
        number = data.draw(st.integers(0, len(message.handles) - 1))
        is_last = number == len(message.handles) - 1
        is_hidden = message.hidden_until > self.now
        call = delete(self.sqs, self.url, message.handles[number])
        if self.is_fifo and not (is_last and is_hidden):
            with pytest.raises(SqsRefused, match="expired"):
                self.run(call)
            return
        self.run(call)
        if is_last or not (message.is_held and is_hidden):
            self.waiting.remove(message)
            self.deleted.append(message)

    @precondition(lambda self: any(each.handles for each in self.waiting))
    @rule(data=st.data(), seconds=st.sampled_from([0, 5, 60]))
    def hide(self, data: st.DataObject, seconds: int) -> None:
        message = data.draw(st.sampled_from([each for each in self.waiting if each.handles]))
        number = data.draw(st.integers(0, len(message.handles) - 1))
        is_last = number == len(message.handles) - 1
        is_hidden = message.hidden_until > self.now
        call = hide(self.sqs, self.url, message.handles[number], seconds)
        if self.is_fifo and not (is_last and is_hidden):
            with pytest.raises(SqsRefused, match="expired"):
                self.run(call)
            return
        self.run(call)
        until = self.now + seconds * 1_000
        if message.is_held and is_hidden:
            if is_last:
                message.hidden_until, message.is_held = until, seconds > 0
        elif is_last or until > message.hidden_until:
            message.hidden_until, message.is_held = until, False

    @precondition(lambda self: self.deleted)
    @rule(data=st.data())
    def delete_again(self, data: st.DataObject) -> None:
        message = data.draw(st.sampled_from(self.deleted))
        self.run(delete(self.sqs, self.url, message.handles[-1]))

    @rule(seconds=st.sampled_from([1, 5, 10, 30, 301]))
    def wait(self, seconds: int) -> None:
        self.run(reap(self.sqs, seconds * 1_000))


class StandardModel(Model):
    is_fifo = False


SETTINGS = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestFifo = Model.TestCase
TestFifo.settings = SETTINGS
TestStandard = StandardModel.TestCase
TestStandard.settings = SETTINGS
