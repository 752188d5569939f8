"""The shapes against AWS's service model, and the queue that a URL names."""

from typing import Any

import msgspec
import pytest
from msgspec.inspect import (
    BoolType,
    BytesType,
    DictType,
    IntType,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from holdfast.server.sqs import errors
from holdfast.server.sqs.errors import SqsError
from holdfast.server.sqs.shapes import (
    ACTIONS,
    BatchResultErrorEntry,
    DeleteMessageBatchResult,
    ListMessageMoveTasksResultEntry,
    MessageAttributeValue,
    QueuePath,
    ReceivedMessage,
    ReceiveMessageResult,
    queue_of,
)
from tests.server.sqs.service_model import service_model

SCALARS = {
    "string": StrType,
    "integer": IntType,
    "long": IntType,
    "boolean": BoolType,
    "blob": BytesType,
}


def test_the_actions_are_those_of_the_model() -> None:
    assert sorted(ACTIONS) == sorted(service_model().operation_names)
    assert len(ACTIONS) == 23


@pytest.mark.parametrize("name", ACTIONS)
def test_a_request_has_the_members_of_the_model(name: str) -> None:
    shape = service_model().operation_model(name).input_shape
    compare(type_info(ACTIONS[name].request), shape)
    assert ACTIONS[name].on_queue == ("QueueUrl" in shape.members)


@pytest.mark.parametrize("name", ACTIONS)
def test_an_answer_has_the_members_of_the_model(name: str) -> None:
    shape = service_model().operation_model(name).output_shape
    answer = ACTIONS[name].answer
    assert (answer is None) == (shape is None)
    if answer is not None:
        compare(type_info(answer), shape, answer=True)


def compare(ours: Type, theirs: Any, *, answer: bool = False) -> None:
    if theirs.type_name == "structure":
        assert isinstance(ours, StructType)
        fields = {field.encode_name: field for field in ours.fields}
        assert set(fields) == set(theirs.members), theirs.name
        required = {name for name, field in fields.items() if field.required}
        if answer and ours.cls is not MessageAttributeValue:
            # A server may promise more than the model does.
            assert required >= set(theirs.required_members), theirs.name
        elif ours.cls is not MessageAttributeValue:
            assert required == set(theirs.required_members), theirs.name
        for name, field in fields.items():
            compare(without_none(field.type), theirs.members[name], answer=answer)
    elif theirs.type_name == "list":
        assert isinstance(ours, VarTupleType)
        compare(ours.item_type, theirs.member, answer=answer)
    elif theirs.type_name == "map":
        assert isinstance(ours, DictType)
        assert isinstance(ours.key_type, StrType)
        compare(ours.value_type, theirs.value, answer=answer)
    else:
        assert isinstance(ours, SCALARS[theirs.type_name])


def without_none(info: Type) -> Type:
    if isinstance(info, UnionType):
        (info,) = (each for each in info.types if not isinstance(each, NoneType))
    return info


def test_empty_members_of_an_answer_are_left_out() -> None:
    assert msgspec.json.encode(ReceiveMessageResult(messages=())) == b"{}"
    message = ReceivedMessage(message_id="1", receipt_handle="2", md5_of_body="3", body="4")
    wire = msgspec.json.encode(message)
    assert wire == b'{"MessageId":"1","ReceiptHandle":"2","MD5OfBody":"3","Body":"4"}'


def test_both_lists_of_a_batch_are_sent() -> None:
    wire = msgspec.json.encode(DeleteMessageBatchResult(successful=(), failed=()))
    assert wire == b'{"Successful":[],"Failed":[]}'


def test_an_error_becomes_an_entry_of_a_batch() -> None:
    entry = BatchResultErrorEntry.of("a", errors.invalid_handle("x"))
    assert entry.code == "ReceiptHandleIsInvalid"
    assert entry.sender_fault
    assert entry.message == 'The input receipt handle "x" is not a valid receipt handle.'


def test_counts_of_a_move_task_are_sent_even_if_zero() -> None:
    entry = ListMessageMoveTasksResultEntry(
        status="RUNNING",
        source_arn="a",
        approximate_number_of_messages_moved=0,
        approximate_number_of_messages_to_move=0,
        started_timestamp=0,
    )
    wire = msgspec.json.decode(msgspec.json.encode(entry))
    assert wire["ApproximateNumberOfMessagesMoved"] == 0
    assert wire["ApproximateNumberOfMessagesToMove"] == 0


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:7433/123456789012/tasks.fifo",
        "https://sqs.eu-west-1.amazonaws.com/123456789012/tasks.fifo",
        "http://[::1]:7433/123456789012/tasks.fifo",
        "http://proxy/some/prefix/123456789012/tasks.fifo",
        "/123456789012/tasks.fifo",
        "123456789012/tasks.fifo",
    ],
)
def test_a_url_names_a_queue_by_its_path(url: str) -> None:
    assert queue_of(url) == QueuePath("123456789012", "tasks.fifo")


def test_a_bare_name_is_a_queue_of_the_caller() -> None:
    assert queue_of("tasks") == QueuePath(None, "tasks")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/",
        "not a url",
        "http://host",
        "http://host/",
        "http://host/tasks",
        "http://host/12345678901/tasks",
        "http://host/١٢٣٤٥٦٧٨٩٠١٢/tasks",
        "http://host/123456789012/",
        "http://host/123456789012/tasks/",
        "http://host/123456789012/tasks\n",
        "http://host/123456789012/tasks?a=b",
        "http://host/123456789012/../tasks",
        "http://host/123456789012/" + "a" * 81,
        "ftp://host/123456789012/tasks",
        pytest.param("http://host/" + "a/" * 100_000 + "123456789012/tasks", id="long"),
        pytest.param("/" * 2_048, id="slashes"),
        "tasks\x00",
    ],
)
def test_nonsense_is_a_queue_that_does_not_exist(url: str) -> None:
    with pytest.raises(SqsError) as caught:
        queue_of(url)
    assert caught.value.shape == "QueueDoesNotExist"
