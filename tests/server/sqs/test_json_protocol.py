"""AWS JSON 1.0 against botocore's serializer and parser, and against hostile bodies."""

import base64
import json
from typing import Any

import pytest
from botocore.parsers import JSONParser
from botocore.serialize import JSONSerializer
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields

from holdfast.server.http.response import Reply
from holdfast.server.sqs import errors
from holdfast.server.sqs.errors import KINDS, SqsError
from holdfast.server.sqs.json_protocol import (
    action_of,
    decode_request,
    encode_answer,
    encode_error,
)
from holdfast.server.sqs.shapes import (
    ACTIONS,
    Action,
    Answer,
    GetQueueAttributesRequest,
    ListQueuesRequest,
    ReceiveMessageResult,
    Request,
    SendMessageBatchRequest,
    SendMessageRequest,
    SendMessageResult,
    UntagQueueRequest,
)
from tests.server.sqs.service_model import instances, parse_reply, plain, service_model

SEND = ACTIONS["SendMessage"]
BATCH = ACTIONS["SendMessageBatch"]
ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=5,
)
ANY_ACTION = st.sampled_from(sorted(ACTIONS)).map(ACTIONS.__getitem__)
REQUESTS = ANY_ACTION.flatmap(
    lambda action: st.tuples(st.just(action), instances(action.request, ANY_TEXT))
)
ANSWERS = {name: each.answer for name, each in ACTIONS.items() if each.answer}


def refusal(action: Action, body: bytes, queue_url: str | None = None) -> SqsError:
    with pytest.raises(SqsError) as caught:
        decode_request(action, body, queue_url=queue_url)
    return caught.value


def decoded_or_refused(action: Action, body: bytes) -> Request | SqsError:
    """A hostile body has a request, or an error of the client: never another exception."""
    try:
        request = decode_request(action, body)
    except SqsError as error:
        fault = error
    else:
        assert type(request) is action.request
        return request
    assert fault.status == 400
    assert fault.shape in ("SerializationException", "MissingRequiredParameterException")
    assert fault.message.isprintable()
    assert len(fault.message) < 200
    return fault


def send(**members: Any) -> bytes:
    return json.dumps({"QueueUrl": "q", "MessageBody": "b", **members}).encode()


def parsed(reply: Reply, name: str) -> dict[str, Any]:
    return parse_reply(JSONParser(), service_model(), reply, name)


@pytest.mark.parametrize("name", ACTIONS)
@settings(max_examples=10)
@given(data=st.data())
def test_requests_of_botocore_are_read(name: str, data: st.DataObject) -> None:
    action = ACTIONS[name]
    request = data.draw(instances(action.request, ANY_TEXT))
    wire = JSONSerializer().serialize_to_request(
        plain(request), service_model().operation_model(action.name)
    )
    assert action_of(wire["headers"]["X-Amz-Target"]) is action
    assert decode_request(action, wire["body"]) == request


@pytest.mark.parametrize(("name", "shape"), ANSWERS.items())
@settings(max_examples=10)
@given(data=st.data())
def test_botocore_reads_answers(name: str, shape: type[Answer], data: st.DataObject) -> None:
    answer = data.draw(instances(shape, ANY_TEXT))
    result = parsed(encode_answer(answer, "the-id"), name)
    metadata = result.pop("ResponseMetadata")
    assert metadata["RequestId"] == "the-id"
    assert metadata["HTTPStatusCode"] == 200
    assert {key: value for key, value in result.items() if value != []} == plain(answer)


@pytest.mark.parametrize("shape", KINDS)
def test_botocore_reads_errors(shape: str) -> None:
    error = SqsError(shape, 'A "quoted" text.')
    result = parsed(encode_error(error, "the-id"), "SendMessage")
    assert result["Error"] == {
        "Code": error.code,
        "Message": error.message,
        "QueryErrorCode": shape,
        "Type": "Sender" if error.status < 500 else "Receiver",
    }
    assert result["ResponseMetadata"]["HTTPStatusCode"] == error.status
    assert result["ResponseMetadata"]["RequestId"] == "the-id"


def test_an_error_on_the_wire() -> None:
    reply = encode_error(errors.queue_does_not_exist(), "the-id")
    assert reply.status == 400
    assert dict(reply.headers) == {
        b"content-type": b"application/x-amz-json-1.0",
        b"x-amzn-requestid": b"the-id",
        b"x-amzn-query-error": b"AWS.SimpleQueueService.NonExistentQueue;Sender",
    }
    assert json.loads(reply.body) == {
        "__type": "com.amazonaws.sqs#QueueDoesNotExist",
        "message": "The specified queue does not exist.",
    }
    common = json.loads(encode_error(errors.invalid_parameter("No."), "the-id").body)
    assert common["__type"] == "com.amazon.coral.service#InvalidParameterValueException"


def test_answers_on_the_wire() -> None:
    assert encode_answer(None, "id").body == b"{}"
    assert encode_answer(ReceiveMessageResult(), "id").body == b"{}"
    answer = SendMessageResult(message_id="1", md5_of_message_body="2")
    assert json.loads(encode_answer(answer, "id").body) == {
        "MessageId": "1",
        "MD5OfMessageBody": "2",
    }


@pytest.mark.parametrize(
    "target", ["", "SendMessage", "AmazonSQS", "AmazonSQS.", "AmazonSQS.Send", "Other.SendMessage"]
)
def test_unknown_targets(target: str) -> None:
    with pytest.raises(SqsError) as caught:
        action_of(target)
    assert (caught.value.shape, caught.value.status) == ("UnknownOperationException", 400)


def test_nulls_are_absent_at_every_depth() -> None:
    entry = {
        "Id": "a",
        "MessageBody": "b",
        "DelaySeconds": None,
        "MessageAttributes": {"k": None, "l": {"DataType": "String", "BinaryValue": None}},
        "MessageSystemAttributes": None,
    }
    body = json.dumps({"QueueUrl": "q", "Entries": [None, entry, None], "x": None}).encode()
    request = decode_request(BATCH, body)
    assert isinstance(request, SendMessageBatchRequest)
    (only,) = request.entries
    assert only.delay_seconds is None
    assert list(only.message_attributes) == ["l"]
    assert only.message_system_attributes == {}


@given(REQUESTS, st.data())
def test_a_null_member_is_an_absent_one(case: tuple[Action, Request], data: st.DataObject) -> None:
    action, request = case
    body = json_members(request)
    member = data.draw(st.sampled_from(fields(action.request) or [None]))
    if member is None:
        return
    without = {key: value for key, value in body.items() if key != member.encode_name}
    with_null = {**body, member.encode_name: None}
    results = [
        decoded_or_refused(action, json.dumps(each).encode()) for each in (without, with_null)
    ]
    assert str(results[0]) == str(results[1])
    assert isinstance(results[0], SqsError) == member.required


def test_unknown_members_are_ignored() -> None:
    body = send(Other={"a": [1, {"b": None}]})
    assert decode_request(SEND, body) == SendMessageRequest(queue_url="q", message_body="b")


def test_a_path_stands_in_for_a_missing_queue_url() -> None:
    request = decode_request(SEND, b'{"MessageBody":"b"}', queue_url="/1/a")
    assert request == SendMessageRequest(queue_url="/1/a", message_body="b")
    null = decode_request(SEND, b'{"QueueUrl":null,"MessageBody":"b"}', queue_url="/1/a")
    assert null == request
    both = decode_request(SEND, send(), queue_url="/1/a")
    assert both == SendMessageRequest(queue_url="q", message_body="b")
    # An action without a queue ignores the path.
    assert decode_request(ACTIONS["ListQueues"], b"{}", queue_url="x") == ListQueuesRequest()


@pytest.mark.parametrize("name", ACTIONS)
def test_the_first_missing_member_is_named(name: str) -> None:
    required = [field.encode_name for field in fields(ACTIONS[name].request) if field.required]
    for body in (b"{}", b""):
        if required:
            error = refusal(ACTIONS[name], body)
            assert error.shape == "MissingRequiredParameterException"
            assert error.message == f"The request must contain the parameter {required[0]}."
        else:
            assert decode_request(ACTIONS[name], body) == ListQueuesRequest()


def test_a_missing_member_of_an_entry_is_named() -> None:
    body = {"QueueUrl": "q", "Entries": [{"Id": "a", "MessageBody": "b"}, {"Id": "c"}]}
    assert refusal(BATCH, json.dumps(body).encode()).message == (
        "The request must contain the parameter SendMessageBatchRequestEntry.2.MessageBody."
    )


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"MessageBody": 1}, "NUMBER_VALUE can not be converted to a String"),
        ({"MessageBody": 1.5}, "NUMBER_VALUE can not be converted to a String"),
        ({"MessageBody": True}, "TRUE_VALUE can not be converted to a String"),
        ({"MessageBody": []}, "Start of list found where not expected"),
        ({"MessageBody": {}}, "Start of structure or map found where not expected."),
        ({"DelaySeconds": "1"}, "STRING_VALUE can not be converted to an Integer"),
        ({"DelaySeconds": 1.5}, "NUMBER_VALUE can not be converted to an Integer"),
        ({"DelaySeconds": [1]}, "Start of list found where not expected"),
        ({"MessageAttributes": "a"}, "Unexpected field type"),
        ({"MessageAttributes": {"a": 1}}, "Unexpected field type"),
        ({"MessageAttributes": []}, "Start of list found where not expected"),
    ],
)
def test_wrong_types(members: dict[str, Any], message: str) -> None:
    error = refusal(SEND, send(**members))
    assert (error.shape, error.message) == ("SerializationException", message)


@pytest.mark.parametrize("seconds", [2**31, -(2**31) - 1, 10**400])
def test_integers_of_more_than_32_bits(seconds: int) -> None:
    assert refusal(SEND, send(DelaySeconds=seconds)).shape == "SerializationException"


def test_binary_values_are_base64() -> None:
    def value(text: str) -> dict[str, Any]:
        return {"a": {"DataType": "Binary", "BinaryValue": text}}

    request = decode_request(SEND, send(MessageAttributes=value("AP8=")))
    assert isinstance(request, SendMessageRequest)
    assert request.message_attributes["a"].binary_value == b"\x00\xff"
    for text in ("*", "AP8", "é", "AP8=\n"):
        assert refusal(SEND, send(MessageAttributes=value(text))).status == 400


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"x",
        b"{}x",
        b"null",
        b"[]",
        b"1",
        b'"a"',
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'{"QueueUrl":"\xff"}',
        b'{"QueueUrl":"\xed\xa0\x80","MessageBody":"b"}',
        b'{"QueueUrl":"q","MessageBody":"\\u12"}',
        b'{"QueueUrl":"q","MessageBody":"\n"}',
        b'{"QueueUrl":"q","MessageBody":NaN}',
        "{}".encode("utf-16"),
        pytest.param(b"[" * 1_000_000, id="deep list"),
        pytest.param(b'{"a":' * 500_000, id="deep map"),
        pytest.param(b'{"x":' + b"[" * 500_000 + b"]" * 500_000 + b"}", id="deep unknown member"),
        pytest.param(b'{"QueueUrl":' + b"9" * 1_000_000 + b"}", id="digits"),
    ],
)
def test_malformed_bodies(body: bytes) -> None:
    error = decoded_or_refused(SEND, body)
    assert isinstance(error, SqsError)
    assert error.shape == "SerializationException"


def test_a_lone_surrogate_harms_only_its_own_text() -> None:
    r"""`\ud800` becomes U+FFFF, which is as illegal in a message but can be encoded."""
    body = rb'{"QueueUrl":"q","MessageBody":"\ud800 \uD83D\uDE00 \udc00 \\ud800 \ud800\ud800"}'
    request = decode_request(SEND, body)
    assert isinstance(request, SendMessageRequest)
    assert request.message_body == "\uffff 😀 \uffff \\ud800 \uffff\uffff"


def test_a_request_with_nulls_is_bounded() -> None:
    """Such a request is looked at member by member."""
    entries = ",".join(['{"Id":"a","MessageBody":"b"}'] * 100_000)
    body = f'{{"QueueUrl":"q","Entries":[{entries},{{"Id":null}}]}}'.encode()
    assert refusal(BATCH, body).shape == "SerializationException"


def test_the_last_of_duplicate_members_counts() -> None:
    request = decode_request(SEND, b'{"QueueUrl":"q","MessageBody":"a","MessageBody":"b"}')
    assert request == SendMessageRequest(queue_url="q", message_body="b")


def test_lists_and_maps_may_be_null_or_empty() -> None:
    get = ACTIONS["GetQueueAttributes"]
    for names in ("null", "[]"):
        body = f'{{"QueueUrl":"q","AttributeNames":{names}}}'.encode()
        assert decode_request(get, body) == GetQueueAttributesRequest(queue_url="q")
    untag = decode_request(ACTIONS["UntagQueue"], b'{"QueueUrl":"q","TagKeys":[null]}')
    assert untag == UntagQueueRequest(queue_url="q", tag_keys=())


@given(REQUESTS, ANY_JSON, st.data())
def test_any_value_in_any_member(
    case: tuple[Action, Request], hostile: Any, data: st.DataObject
) -> None:
    action, request = case
    body = json_members(request)
    places = sorted(paths(body), key=repr)
    if not places:
        return
    replace(body, data.draw(st.sampled_from(places)), hostile)
    decoded_or_refused(action, json.dumps(body).encode())


@given(ANY_ACTION, ANY_JSON)
def test_any_json(action: Action, body: Any) -> None:
    decoded_or_refused(action, json.dumps(body).encode())


@given(ANY_ACTION, st.binary(max_size=50))
def test_any_bytes(action: Action, body: bytes) -> None:
    decoded_or_refused(action, body)


@given(REQUESTS, st.data())
def test_any_altered_byte(case: tuple[Action, Request], data: st.DataObject) -> None:
    action, request = case
    body = bytearray(json.dumps(json_members(request)).encode())
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    decoded_or_refused(action, bytes(body))
    decoded_or_refused(action, bytes(body[: data.draw(st.integers(0, len(body)))]))


def json_members(request: Request) -> dict[str, Any]:
    """The body of a request, not yet encoded."""

    def text(value: Any) -> Any:
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        if isinstance(value, dict):
            return {key: text(each) for key, each in value.items()}
        return [text(each) for each in value] if isinstance(value, list) else value

    members: dict[str, Any] = text(plain(request))
    return members


def paths(value: Any) -> list[tuple[Any, ...]]:
    """The places of all members at every depth."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    found: list[tuple[Any, ...]] = []
    for key, each in pairs:
        found.append((key,))
        if isinstance(each, dict | list):
            found += [(key, *rest) for rest in paths(each)]
    return found


def replace(body: Any, path: tuple[Any, ...], value: Any) -> None:
    *branches, leaf = path
    for branch in branches:
        body = body[branch]
    body[leaf] = value
