"""The SQS endpoint for tests of programs."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import ConfigError
from holdfast.testing import sqs_client
from tests.wait import wait_until


def test_upkeep_runs_and_nothing_is_left() -> None:
    before = set(threading.enumerate())
    with sqs_client() as sqs:
        url = sqs.create_queue(QueueName="mail")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="hello")
        sqs.receive_message(QueueUrl=url, VisibilityTimeout=1)
        # The reaper makes it visible again.
        [message] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
        assert message["Body"] == "hello"
        sqs.purge_queue(QueueUrl=url)
        sqs.purge_queue(QueueUrl=url)
    assert set(threading.enumerate()) <= before


def test_the_end_of_the_block_ends_a_long_poll() -> None:
    with ThreadPoolExecutor(1) as threads:
        with sqs_client() as sqs:
            url = sqs.create_queue(QueueName="mail")["QueueUrl"]
            sent = threading.Event()
            sqs.meta.events.register("before-send.sqs.ReceiveMessage", lambda **_: sent.set())
            poll = threads.submit(sqs.receive_message, QueueUrl=url, WaitTimeSeconds=20)
            wait_until(sent.is_set)
        # It answers nothing, or was cut off before it began to wait.
        assert poll.exception() is not None or "Messages" not in poll.result()


def test_two_endpoints_share_nothing() -> None:
    with sqs_client() as one, sqs_client() as two:
        one.create_queue(QueueName="mail")
        assert "QueueUrls" not in two.list_queues()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=r"pip install 'holdfast\[aws\]'"), sqs_client():
        pass
