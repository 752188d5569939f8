"""Settings of queues survive as attributes and tags, which anybody may edit."""

import json

import pytest

from holdfast.core.backoff import Backoff
from holdfast.core.model import Queue
from holdfast.engines.sqs import settings
from holdfast.engines.sqs.names import QueueNames

NAMES = QueueNames("p-")
ARN = "arn:aws:sqs:eu-west-1:1:p-q"
ALL = Queue(
    name="q",
    lease_ms=1_500,
    timeout_ms=2_000,
    max_attempts=7,
    max_crashes=1,
    backoff=Backoff(kind="linear", first_ms=7, factor=1.5, cap_ms=70, jitter=0.25),
    retention_ms=0,
    dead_retention_ms=1,
    payload_max=10,
    accepting=False,
    paused=True,
)


def stored(attributes: dict[str, str], tags: dict[str, str]) -> settings.StoredQueue:
    return settings.read_queue("q", "http://h/1/p-q", {"QueueArn": ARN, **attributes}, tags, NAMES)


@pytest.mark.parametrize("queue", [Queue(name="q"), ALL, Queue(name="q", lease_ms=43_200_000)])
def test_settings_are_read_back(queue: Queue) -> None:
    attributes = settings.attributes_of(queue, f"{ARN}-dlq")
    tags = settings.tags_of(queue)
    assert stored(attributes, tags).queue == queue
    legal = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _.:/=+-@")
    assert all(set(name + value) <= legal and len(value) <= 256 for name, value in tags.items())


def test_plain_settings_need_no_tag() -> None:
    assert settings.tags_of(Queue(name="q", lease_ms=60_000)) == {}


def test_a_dead_queue_is_the_target_of_the_redrive_policy() -> None:
    queue = Queue(name="q", dead_queue="grave")
    attributes = settings.attributes_of(queue, "arn:aws:sqs:eu-west-1:1:p-grave-dlq")
    found = stored(attributes, settings.tags_of(queue))
    assert found.queue == queue
    assert found.dead_name == "p-grave-dlq"


@pytest.mark.parametrize(("attempts", "receives"), [(4, 104), (0, 1000), (2_000, 1000)])
def test_sqs_moves_a_message_only_after_us(attempts: int, receives: int) -> None:
    attributes = settings.attributes_of(Queue(name="q", max_attempts=attempts), ARN)
    assert json.loads(attributes["RedrivePolicy"])["maxReceiveCount"] == receives


def test_dead_letters_outlive_the_queue() -> None:
    kept = settings.new_attributes("q", dead=False)["MessageRetentionPeriod"]
    dead = settings.new_attributes("q-dlq", dead=True)["MessageRetentionPeriod"]
    assert int(dead) > int(kept)


def test_a_visibility_timeout_that_somebody_changed_counts() -> None:
    tags = settings.tags_of(ALL)
    assert stored({"VisibilityTimeout": "2"}, tags).queue.lease_ms == 1_500
    assert stored({"VisibilityTimeout": "90"}, tags).queue.lease_ms == 90_000
    assert stored({"VisibilityTimeout": "0"}, {}).queue.lease_ms == 1_000


def test_a_queue_of_another_program_is_buried_before_sqs_moves_it() -> None:
    policy = {"deadLetterTargetArn": "arn:aws:sqs:eu-west-1:1:failed", "maxReceiveCount": "3"}
    found = stored({"RedrivePolicy": json.dumps(policy)}, {"holdfast.task": "mail.send"})
    assert (found.queue.max_attempts, found.queue.dead_queue) == (3, None)
    assert (found.dead_name, found.task) == ("failed", "mail.send")


@pytest.mark.parametrize(
    "tags",
    [
        {"holdfast.max_attempts": "-1"},
        {"holdfast.max_attempts": "9" * 30},
        {"holdfast.lease_ms": "x"},
        {"holdfast.order": "random"},
        {"holdfast.backoff": "exponential/1/nan/3/4"},
        {"holdfast.backoff": "////"},
        {"holdfast.payload_max": "0"},
        {"holdfast.task": "a task"},
    ],
)
def test_a_tag_that_cannot_be_read_is_the_default(tags: dict[str, str]) -> None:
    found = stored({"RedrivePolicy": "{]", "VisibilityTimeout": "30"}, tags)
    assert found.queue == Queue(name="q")
    assert found.task == settings.DEFAULT_TASK
    assert found.dead_name is None
