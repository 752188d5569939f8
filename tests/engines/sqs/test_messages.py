"""Jobs become messages and jobs again; hostile messages become nothing else."""

import json

import pytest
from msgspec.structs import replace

from holdfast.conformance import inputs
from holdfast.core import bounds
from holdfast.core.backoff import Backoff
from holdfast.core.codec import ENVELOPE, Attribute, pack_envelope
from holdfast.core.model import Failure, Job, Overrides, Queue, Reason
from holdfast.engines.sqs import messages
from holdfast.engines.sqs.client import OutgoingSqsMessage, SqsAttribute, SqsMessage
from holdfast.engines.sqs.messages import DeadAttribute, UnreadableMessage
from holdfast.engines.sqs.settings import StoredQueue
from holdfast.errors import PayloadTooLarge

STORED = StoredQueue(
    queue=Queue(name="q"), url="u", arn="arn:aws:sqs:r:1:q", dead_name=None, task="message"
)
FIFO = replace(STORED, queue=Queue(name="q.fifo"))
JOB = Job(id="a", task="work", queue="q", payload=b"{}", created_at=5, attempt=1, due_at=7)
SYSTEM = {"ApproximateReceiveCount": "1", "SentTimestamp": "7"}


def received(sent: OutgoingSqsMessage, **system: str) -> SqsMessage:
    return SqsMessage(
        id="m1", handle="h", body=sent.body, attributes=sent.attributes, system={**SYSTEM, **system}
    )


def foreign(body: str, system: dict[str, str] | None = None, **attributes: str) -> SqsMessage:
    named = {
        name.replace("_", "."): SqsAttribute("String", each) for name, each in attributes.items()
    }
    return SqsMessage(
        id="m1", handle="h", body=body, attributes=named, system={**SYSTEM, **(system or {})}
    )


@pytest.mark.parametrize("payload", [each for each in inputs.PAYLOADS if len(each) < 700_000])
def test_every_payload_comes_back(payload: bytes) -> None:
    job = replace(JOB, payload=payload, content_type="application/x; a=b")
    sent = messages.write_message(job, STORED)
    assert sent.body
    assert sent.size <= messages.MESSAGE_BYTES_MAX
    assert messages.read_message(received(sent), STORED) == job


@pytest.mark.parametrize("text", inputs.STORABLE_TEXTS)
def test_every_field_comes_back(text: str) -> None:
    job = replace(
        JOB,
        tenant=text,
        labels={"l": text},
        headers={"h": text},
        overrides=Overrides(lease_ms=11, backoff=Backoff(kind="constant", first_ms=5)),
        expires_at=99,
        origin="there",
    )
    sent = messages.write_message(job, STORED)
    assert len(sent.attributes) <= 10
    assert all(one.value.isascii() for one in sent.attributes.values())
    assert sent.group is not None
    assert len(sent.group) <= 128
    assert sent.group.isascii()
    assert messages.read_message(received(sent), STORED) == job


def test_headers_of_a_receipt_are_neither_sent_nor_believed() -> None:
    forged = {"sqs.receipt-handle": "theirs", "kept": "1"}
    sent = messages.write_message(replace(JOB, headers=forged), STORED)
    assert "theirs" not in sent.attributes[messages.JOB_ATTRIBUTE].value
    given = json.dumps({"id": "a", "headers": forged})
    job = messages.read_message(foreign("x", holdfast_job=given), STORED)
    assert job.headers == {"kept": "1"}


def test_a_foreign_message_is_a_job_of_the_queues_task() -> None:
    found = foreign("plain", {"MessageGroupId": "t1"}, trace="abc")
    job = messages.read_message(found, replace(STORED, task="mail.send"))
    assert (job.id, job.task, job.tenant, job.group) == ("m1", "mail.send", "t1", None)
    assert (job.content_type, job.created_at) == (ENVELOPE, 7)
    again = messages.rewrite_message(job, STORED)
    assert (again.body, again.attributes["trace"].value) == ("plain", "abc")
    assert messages.read_message(foreign('{"a":1}'), STORED).content_type == "application/json"


def test_a_group_of_a_fifo_queue() -> None:
    sent = messages.write_message(replace(JOB, queue="q.fifo", group="g"), FIFO)
    assert (sent.group, sent.deduplication_id) == ("g", "a")
    alone = messages.write_message(replace(JOB, queue="q.fifo"), FIFO)
    assert alone.group == "a"
    assert messages.read_message(foreign("x", {"MessageGroupId": "g"}), FIFO).group == "g"


def test_attributes_without_room_come_back() -> None:
    many = {f"n{number}": Attribute("String", b"v") for number in range(10)}
    payload, content_type = pack_envelope(b"body", many)
    job = replace(JOB, payload=payload, content_type=content_type)
    sent = messages.write_message(job, STORED)
    assert len(sent.attributes) <= 9, "one more for its death"
    found = messages.read_message(received(sent), STORED)
    assert (found.content_type, found.payload) == (content_type, payload)


HOSTILE = {
    "not base64": foreign("%%%", holdfast_encoding="base64"),
    "an unknown encoding": foreign("x", holdfast_encoding="gzip"),
    "a task with spaces": foreign("x", holdfast_task="rm -rf /"),
    "no JSON": foreign("x", holdfast_job="{"),
    "nested JSON": foreign("x", holdfast_job="[" * 100_000),
    "wrong types": foreign("x", holdfast_job='{"id": 5}'),
    "a bad id": foreign("x", holdfast_job='{"id": "a b"}'),
    "an instant out of bounds": foreign("x", holdfast_job='{"expires_at": -1}'),
    "overrides out of bounds": foreign("x", holdfast_job='{"overrides": {"max_attempts": -1}}'),
    "a bad backoff": foreign("x", holdfast_job='{"overrides": {"backoff": {"kind": "no"}}}'),
    "a long header": foreign("x", holdfast_job=json.dumps({"headers": {"h": "x" * 70_000}})),
    "a lone surrogate": foreign("\ud800"),
}


@pytest.mark.parametrize("found", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_message_is_unreadable(found: SqsMessage) -> None:
    with pytest.raises(UnreadableMessage):
        messages.read_message(found, STORED)
    letter = messages.read_dead_letter(found, STORED, None)
    assert letter.is_dead_letter
    assert letter.id == "m1"


@pytest.mark.parametrize("count", ["", "-1", "x", "9" * 40, "٣"])
def test_a_strange_receive_count_is_the_first(count: str) -> None:
    assert messages.receive_count(foreign("x", {"ApproximateReceiveCount": count})) == 1


def test_one_byte_more_than_a_mebibyte_is_refused() -> None:
    empty = messages.write_message(replace(JOB, payload=b"x"), STORED).size - 1
    largest = replace(JOB, payload=b"x" * (messages.MESSAGE_BYTES_MAX - empty))
    assert messages.write_message(largest, STORED).size == messages.MESSAGE_BYTES_MAX
    with pytest.raises(PayloadTooLarge, match="1048577 bytes"):
        messages.write_message(replace(largest, payload=largest.payload + b"x"), STORED)


def test_the_largest_message_can_be_buried() -> None:
    body = "x" * messages.MESSAGE_BYTES_MAX
    job = messages.read_message(foreign(body), STORED)
    failure = Failure(message="m" * 20_000, trace="t" * 20_000)
    dead = DeadAttribute(reason=Reason.CRASHED, failure=failure, queue="q")
    burial = messages.burial_of(foreign(body), STORED, job, dead)
    letter = messages.with_death(burial.letter, dead, deduplication_id=None)
    assert letter.body == body
    assert letter.size <= messages.MESSAGE_BYTES_MAX
    small = messages.rewrite_message(replace(JOB, payload=b"x" * 1_000_000), STORED)
    letter = messages.with_death(small, dead, deduplication_id=None)
    assert letter.size <= messages.MESSAGE_BYTES_MAX
    assert "crashed" in letter.attributes[messages.DEAD_ATTRIBUTE].value


def test_the_largest_message_keeps_its_attributes() -> None:
    """All ten of another program's, if there is no room for ours."""
    named = {f"a{n}": "v" for n in range(messages.ATTRIBUTES_MAX)}
    empty = sum(len(name) + len("String") + len(value) for name, value in named.items())
    found = foreign("x" * (messages.MESSAGE_BYTES_MAX - empty), {}, **named)
    job = messages.read_message(found, STORED)
    dead = DeadAttribute(reason=Reason.CRASHED, queue="q")
    burial = messages.burial_of(found, STORED, job, dead)
    for sent in (
        messages.repeat_message(job, STORED, delay_s=0),
        messages.with_death(burial.letter, dead, deduplication_id=None),
    ):
        assert sent.size <= messages.MESSAGE_BYTES_MAX
        assert (sent.body, sent.attributes) == (found.body, found.attributes)


def test_the_largest_job_keeps_its_fields_when_it_is_sent_again() -> None:
    """It has no room for the count of its attempts, or for the queue it came from."""
    empty = messages.write_message(replace(JOB, payload=b"x", origin=None), STORED).size - 1
    payload = b"x" * (messages.MESSAGE_BYTES_MAX - empty)
    sent = messages.write_message(replace(JOB, payload=payload, origin=None), STORED)
    job = messages.read_message(received(sent, ApproximateReceiveCount="4"), STORED)
    repeated = messages.repeat_message(job, STORED, delay_s=0)
    forwarded = messages.rewrite_message(replace(job, origin="other"), STORED)
    assert repeated.attributes == forwarded.attributes == sent.attributes


def test_a_dead_letter_tells_why_and_where() -> None:
    dead = DeadAttribute(
        reason=Reason.REJECTED,
        failure=Failure(type="ValueError", message="bad"),
        queue="other",
        attempt=3,
        message_id="m0",
        died_at=50,
    )
    sent = messages.with_death(messages.write_message(JOB, STORED), dead, deduplication_id=None)
    found = received(sent, ApproximateReceiveCount="2")
    letter = messages.read_dead_letter(found, STORED, None)
    assert (letter.id, letter.task, letter.reason) == ("a", "work", Reason.REJECTED)
    assert (letter.attempt, letter.origin, letter.finished_at) == (3, "other", 50)
    assert [event.failure for event in letter.failures] == [dead.failure]


def test_a_letter_that_sqs_moved_has_a_reason_too() -> None:
    letter = messages.read_dead_letter(
        foreign("x", {"ApproximateReceiveCount": "5"}), STORED, "src"
    )
    assert (letter.reason, letter.origin, letter.attempt) == (Reason.ATTEMPTS, "src", 5)


def test_a_forged_death_in_a_queue_kills_nobody() -> None:
    found = foreign("x", holdfast_dead='{"reason": "rejected"}')
    assert not messages.read_message(found, STORED).is_dead_letter


def test_sizes_are_within_the_bounds_of_a_payload() -> None:
    assert messages.MESSAGE_BYTES_MAX <= bounds.PAYLOAD_MAX
