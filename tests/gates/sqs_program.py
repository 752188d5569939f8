"""Another program at SQS: it creates queues, sends and receives. And faults of the service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError, ReadTimeoutError

from holdfast.testing.sqs import REGION

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


class SqsProgram:
    """Its queues have names of their own, because tests share an endpoint."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.url = f"sqs://{REGION}?endpoint={client.meta.endpoint_url}"

    def create(self, name: str = "q", *, fifo: bool = False, **attributes: str) -> str:
        name = f"{name}-{uuid4().hex[:12]}" + (".fifo" if fifo else "")
        given = {**attributes, **({"FifoQueue": "true"} if fifo else {})}
        self.client.create_queue(QueueName=name, Attributes=given)
        return name

    def queue_url(self, name: str) -> str:
        url: str = self.client.get_queue_url(QueueName=name)["QueueUrl"]
        return url

    def arn(self, name: str) -> str:
        found = self.client.get_queue_attributes(
            QueueUrl=self.queue_url(name), AttributeNames=["QueueArn"]
        )
        arn: str = found["Attributes"]["QueueArn"]
        return arn

    def send(self, name: str, body: str = "x", **members: Any) -> str:
        """Returns the message id."""
        answer = self.client.send_message(
            QueueUrl=self.queue_url(name), MessageBody=body, **members
        )
        id_: str = answer["MessageId"]
        return id_

    def send_many(self, name: str, bodies: Sequence[str]) -> list[str]:
        url = self.queue_url(name)
        ids: list[str] = []
        for start in range(0, len(bodies), 10):
            entries = [
                {"Id": str(number), "MessageBody": body}
                for number, body in enumerate(bodies[start : start + 10])
            ]
            answer = self.client.send_message_batch(QueueUrl=url, Entries=entries)
            found = {each["Id"]: each["MessageId"] for each in answer["Successful"]}
            ids += [found[str(number)] for number in range(len(entries))]
        return ids

    def receive(self, name: str, limit: int = 10, **members: Any) -> list[dict[str, Any]]:
        answer = self.client.receive_message(
            QueueUrl=self.queue_url(name),
            MaxNumberOfMessages=limit,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
            **members,
        )
        found: list[dict[str, Any]] = answer.get("Messages", [])
        return found

    def take_all(self, name: str) -> list[dict[str, Any]]:
        """Receive and delete every message that is visible."""
        found = []
        while messages := self.take(name):
            found += messages
        return found

    def take(self, name: str, wait_s: int = 0) -> list[dict[str, Any]]:
        """Receive and delete at most ten messages."""
        messages = self.receive(name, WaitTimeSeconds=wait_s)
        entries = [
            {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]}
            for number, each in enumerate(messages)
        ]
        if entries:
            self.client.delete_message_batch(QueueUrl=self.queue_url(name), Entries=entries)
        return messages

    def counts(self, name: str) -> tuple[int, int]:
        """The visible messages, and those in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(
            QueueUrl=self.queue_url(name), AttributeNames=names
        )["Attributes"]
        return int(found[names[0]]), int(found[names[1]])


class SqsFaults:
    """Decides about each request of Holdfast, by action: `before` may raise instead of it, `after`
    once it was carried out. `replies` may answer instead of the service."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.before: Callable[[str], None] = lambda _: None
        self.replies: Callable[[str, dict[str, Any]], dict[str, Any] | None] = lambda *_: None
        self.after: Callable[[str], None] = lambda _: None


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> SqsFaults:
    found = SqsFaults()
    plain = BaseClient._make_api_call

    def call(self: BaseClient, action: str, asked: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any]
        if not threading.current_thread().name.startswith("holdfast sqs"):
            answer = plain(self, action, asked)
            return answer
        found.calls.append((action, asked))
        found.before(action)
        answer = found.replies(action, asked) or plain(self, action, asked)
        found.after(action)
        return answer

    monkeypatch.setattr(BaseClient, "_make_api_call", call)
    return found


def refusal(code: str, text: str = "no", status: int = 400) -> ClientError:
    return ClientError(
        {
            "Error": {"Code": code, "Message": text},
            "ResponseMetadata": {"HTTPStatusCode": status},
        },
        "Action",
    )


def lost_reply() -> ReadTimeoutError:
    return ReadTimeoutError(endpoint_url="http://sqs")
