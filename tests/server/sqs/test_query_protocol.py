"""The Query protocol against botocore's serializer and parser, and against hostile parameters."""

import re
from typing import Any
from urllib.parse import parse_qsl, quote_plus, urlencode
from urllib.parse import quote as urlquote
from xml.etree import ElementTree as ET

import pytest
from botocore.parsers import QueryParser
from botocore.serialize import QuerySerializer
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.server.http.response import Reply
from holdfast.server.sqs import errors
from holdfast.server.sqs.errors import KINDS, SqsError
from holdfast.server.sqs.query_protocol import (
    PARAMETERS_MAX,
    Parameters,
    action_of,
    decode_request,
    encode_answer,
    encode_error,
    encode_no_action,
    read_parameters,
)
from holdfast.server.sqs.shapes import (
    ACTIONS,
    Action,
    Answer,
    DeleteMessageBatchRequest,
    GetQueueAttributesRequest,
    ListQueueTagsResult,
    MessageAttributeValue,
    ReceivedMessage,
    ReceiveMessageResult,
    Request,
    SendMessageRequest,
    SetQueueAttributesRequest,
)
from tests.server.sqs.service_model import LEGAL_TEXT, instances, parse_reply, plain, query_model

SEND = ACTIONS["SendMessage"]
XMLNS = "{http://queue.amazonaws.com/doc/2012-11-05/}"
ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
ANY_ACTION = st.sampled_from(sorted(ACTIONS)).map(ACTIONS.__getitem__)
ANSWERS = {name: each.answer for name, each in ACTIONS.items() if each.answer}
# Parts of parameter names: hostile clients put them together in any way.
PARTS = st.sampled_from(
    [
        *("QueueUrl", "MessageBody", "DelaySeconds", "Attribute", "AttributeName", "Tag", "TagKey"),
        *("MessageAttribute", "MessageSystemAttribute", "SendMessageBatchRequestEntry", "Id"),
        *("DeleteMessageBatchRequestEntry", "ReceiptHandle", "Label", "AWSAccountId"),
        *("Name", "Key", "Value", "DataType", "StringValue", "BinaryValue", "StringListValue"),
        *("0", "1", "2", "01", "-1", "x", "", "999999999", "9999999999999", "١"),
    ]
)
ANY_PARAMETERS = st.dictionaries(
    st.lists(PARTS, min_size=1, max_size=7).map(".".join), ANY_TEXT, max_size=12
)


def read(action: Action, queue_url: str | None = None, **members: str) -> Request:
    body = urlencode({"Action": action.name, **members}).encode()
    return decode_request(action, read_parameters(b"", body), queue_url=queue_url)


def refusal(action: Action, **members: str) -> SqsError:
    with pytest.raises(SqsError) as caught:
        read(action, **members)
    return caught.value


def send(members: Parameters) -> SendMessageRequest:
    request = read(SEND, QueueUrl="q", MessageBody="b", **members)
    assert isinstance(request, SendMessageRequest)
    return request


def parsed(reply: Reply, name: str) -> dict[str, Any]:
    return parse_reply(QueryParser(), query_model(), reply, name)


@pytest.mark.parametrize("name", ACTIONS)
@settings(max_examples=10)
@given(data=st.data())
def test_requests_of_botocore_are_read(name: str, data: st.DataObject) -> None:
    action = ACTIONS[name]
    request = data.draw(instances(action.request, ANY_TEXT))
    wire = QuerySerializer().serialize_to_request(
        plain(request), query_model().operation_model(action.name)
    )
    parameters = read_parameters(b"", urlencode(wire["body"]).encode())
    assert action_of(parameters, on_queue_path=False) is action
    assert decode_request(action, parameters) == request


@pytest.mark.parametrize(("name", "shape"), ANSWERS.items())
@settings(max_examples=10)
@given(data=st.data())
def test_botocore_reads_answers(name: str, shape: type[Answer], data: st.DataObject) -> None:
    answer = data.draw(instances(shape, LEGAL_TEXT))
    result = parsed(encode_answer(ACTIONS[name], answer, "the-id"), name)
    metadata = result.pop("ResponseMetadata")
    assert (metadata["RequestId"], metadata["HTTPStatusCode"]) == ("the-id", 200)
    assert {key: value for key, value in result.items() if value not in ([], {})} == plain(answer)


@pytest.mark.parametrize("name", [name for name, each in ACTIONS.items() if each.answer is None])
def test_an_action_without_result(name: str) -> None:
    reply = encode_answer(ACTIONS[name], None, "the-id")
    root = ET.fromstring(reply.body)
    assert root.tag == f"{XMLNS}{name}Response"
    assert [child.tag for child in root] == [f"{XMLNS}ResponseMetadata"]
    assert parsed(reply, name)["ResponseMetadata"]["RequestId"] == "the-id"


@pytest.mark.parametrize("shape", KINDS)
def test_botocore_reads_errors(shape: str) -> None:
    error = SqsError(shape, "", query_message='A <"quoted"> & text.')
    result = parsed(encode_error(error, "the-id"), "SendMessage")
    assert result["Error"] == {
        "Type": "Sender" if error.status < 500 else "Receiver",
        "Code": error.code,
        "Message": error.query_message,
        "Detail": None,
    }
    assert result["ResponseMetadata"]["RequestId"] == "the-id"
    assert result["ResponseMetadata"]["HTTPStatusCode"] == error.status


def test_an_error_on_the_wire() -> None:
    reply = encode_error(errors.queue_does_not_exist(), "the-id")
    assert (reply.status, dict(reply.headers)[b"content-type"]) == (400, b"text/xml")
    assert reply.body == (
        b'<?xml version="1.0"?>'
        b'<ErrorResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/"><Error>'
        b"<Type>Sender</Type><Code>AWS.SimpleQueueService.NonExistentQueue</Code>"
        b"<Message>The specified queue does not exist for this wsdl version.</Message><Detail/>"
        b"</Error><RequestId>the-id</RequestId></ErrorResponse>"
    )


def test_an_empty_receive_on_the_wire() -> None:
    reply = encode_answer(ACTIONS["ReceiveMessage"], ReceiveMessageResult(), "id")
    assert b"<ReceiveMessageResult/>" in reply.body


def test_a_message_on_the_wire() -> None:
    message = ReceivedMessage(
        message_id="1",
        receipt_handle="2",
        md5_of_body="3",
        body="a\r\n<&>\t",
        attributes={"SenderId": "s"},
        message_attributes={"k": MessageAttributeValue(data_type="Binary", binary_value=b"\xff")},
    )
    answer = ReceiveMessageResult(messages=(message,))
    reply = encode_answer(ACTIONS["ReceiveMessage"], answer, "id")
    assert (
        b"<ReceiveMessageResult><Message><MessageId>1</MessageId><ReceiptHandle>2</ReceiptHandle>"
        b"<MD5OfBody>3</MD5OfBody><Body>a&#xD;\n&lt;&amp;&gt;\t</Body>"
        b"<Attribute><Name>SenderId</Name><Value>s</Value></Attribute>"
        b"<MessageAttribute><Name>k</Name><Value><DataType>Binary</DataType>"
        b"<BinaryValue>/w==</BinaryValue></Value></MessageAttribute></Message>"
        b"</ReceiveMessageResult>"
    ) in reply.body
    root = ET.fromstring(reply.body)
    assert [each.text for each in root.iter(f"{XMLNS}Body")] == [message.body]


def test_tags_on_the_wire() -> None:
    reply = encode_answer(ACTIONS["ListQueueTags"], ListQueueTagsResult(tags={"a": "b"}), "id")
    assert b"<ListQueueTagsResult><Tag><Key>a</Key><Value>b</Value></Tag>" in reply.body


@given(st.text(st.characters(codec=None)))
def test_any_text_is_written_as_xml(text: str) -> None:
    reply = encode_error(SqsError("OverLimit", text), "id")
    written = ET.fromstring(reply.body).findtext(f".//{XMLNS}Message")
    assert len(written or "") == len(text)


def test_a_request_without_an_action() -> None:
    assert action_of(read_parameters(b"a=b", b""), on_queue_path=True) is None
    reply = encode_no_action("id")
    assert (reply.status, reply.body) == (
        404,
        b'<?xml version="1.0"?><UnknownOperationException/>',
    )


@pytest.mark.parametrize("name", ["", "Nonsense", "sendmessage", "SendMessage ", "x" * 2_000])
def test_unknown_actions(name: str) -> None:
    with pytest.raises(SqsError) as caught:
        action_of({"Action": name}, on_queue_path=False)
    assert (caught.value.code, caught.value.status) == ("InvalidAction", 400)
    assert len(caught.value.message) < 1_200


@pytest.mark.parametrize("name", ["CreateQueue", "ListQueues", "StartMessageMoveTask"])
def test_a_path_of_a_queue_takes_only_actions_on_a_queue(name: str) -> None:
    assert action_of({"Action": name}, on_queue_path=False) is ACTIONS[name]
    with pytest.raises(SqsError) as caught:
        action_of({"Action": name}, on_queue_path=True)
    assert caught.value.query_message == f"The action {name} is not valid for this endpoint."
    assert action_of({"Action": "PurgeQueue"}, on_queue_path=True) is ACTIONS["PurgeQueue"]


def test_a_get_has_its_parameters_in_the_query_string() -> None:
    parameters = read_parameters(b"Action=SendMessage&MessageBody=a+b%20%C3%A9&x", b"")
    request = decode_request(SEND, parameters, queue_url="/000000000000/q")
    assert request == SendMessageRequest(queue_url="/000000000000/q", message_body="a b é")


def test_a_queue_url_has_precedence_over_the_path() -> None:
    request = read(SEND, "/000000000000/path", QueueUrl="parameter", MessageBody="b")
    assert request == SendMessageRequest(queue_url="parameter", message_body="b")


def test_a_body_has_precedence_over_the_query_string() -> None:
    assert read_parameters(b"a=1&b=2", b"a=3") == {"a": "3", "b": "2"}


def test_missing_parameters_are_named() -> None:
    error = refusal(SEND, QueueUrl="q")
    assert error.code == "MissingParameter"
    assert error.message == "The request must contain the parameter MessageBody."
    assert refusal(ACTIONS["TagQueue"], QueueUrl="q").code == "MissingParameter"
    entry = {"QueueUrl": "q", "DeleteMessageBatchRequestEntry.3.Id": "a"}
    assert refusal(ACTIONS["DeleteMessageBatch"], **entry).message == (
        "The request must contain the parameter DeleteMessageBatchRequestEntry.3.ReceiptHandle."
    )


def test_an_empty_batch_is_left_to_its_own_error() -> None:
    request = read(ACTIONS["DeleteMessageBatch"], QueueUrl="q")
    assert request == DeleteMessageBatchRequest(queue_url="q", entries=())


@pytest.mark.parametrize("value", ["", "a", "1.0", " 1", "2147483648", "9" * 5_000, "١"])
def test_wrong_integers(value: str) -> None:
    error = refusal(SEND, QueueUrl="q", MessageBody="b", DelaySeconds=value)
    assert error.code == "InvalidParameterValue"
    assert "for parameter DelaySeconds is invalid" in error.message
    assert len(error.message) < 1_200


def attribute(number: object, name: str, **value: str) -> Parameters:
    prefix = f"MessageAttribute.{number}"
    return {
        f"{prefix}.Name": name,
        **{f"{prefix}.Value.{key}": each for key, each in value.items()},
    }


def test_wrong_base64() -> None:
    for text in ("*", "AP8", "é", "AP8=\n", "AP8=AP8="):
        members = attribute(1, "a", DataType="Binary", BinaryValue=text)
        error = refusal(SEND, QueueUrl="q", MessageBody="b", **members)
        assert error.code == "InvalidParameterValue"


def test_indexes_are_an_order_and_not_a_size() -> None:
    members = {
        **attribute(999_999_999, "c", DataType="String", StringValue="3"),
        **attribute(7, "b", DataType="String", StringValue="2"),
        **attribute("00", "a", DataType="String", StringValue="1"),
        **attribute("9999999999", "ignored", DataType="String", StringValue="x"),
        **attribute("-1", "ignored", DataType="String", StringValue="x"),
        **attribute("x", "ignored", DataType="String", StringValue="x"),
    }
    assert list(send(members).message_attributes) == ["a", "b", "c"]


def test_eleven_attributes_are_read_and_refused_later() -> None:
    members: Parameters = {}
    for number in range(1, 12):
        members |= attribute(number, f"n{number}", DataType="String", StringValue="x")
    assert len(send(members).message_attributes) == 11


def test_a_list_or_map_of_one_needs_no_number() -> None:
    request = read(ACTIONS["GetQueueAttributes"], QueueUrl="q", AttributeName="All")
    assert request == GetQueueAttributesRequest(queue_url="q", attribute_names=("All",))
    members = {"QueueUrl": "q", "Attribute.Name": "DelaySeconds", "Attribute.Value": "5"}
    assert read(ACTIONS["SetQueueAttributes"], **members) == SetQueueAttributesRequest(
        queue_url="q", attributes={"DelaySeconds": "5"}
    )


def test_a_map_needs_key_and_value() -> None:
    for member in ("Attribute.1.Name", "Attribute.1.Value"):
        error = refusal(ACTIONS["SetQueueAttributes"], **{"QueueUrl": "q", member: "a"})
        assert error.code == "MissingParameter"
    empty = {"QueueUrl": "q", "Attribute.1.Name": "Policy", "Attribute.1.Value": ""}
    assert read(ACTIONS["SetQueueAttributes"], **empty) == SetQueueAttributesRequest(
        queue_url="q", attributes={"Policy": ""}
    )


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"a=%FF",
        b"a=100%",
        b"a=%4",
        b"%zz=a",
        b"a=%ED%A0%80",
        pytest.param(b"a&" * (PARAMETERS_MAX + 1), id="many parameters"),
    ],
)
def test_malformed_forms(body: bytes) -> None:
    for query, form in ((body, b""), (b"", body)):
        with pytest.raises(SqsError) as caught:
            read_parameters(query, form)
        assert (caught.value.code, caught.value.status) == ("MalformedInput", 400)


@given(st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=4))
def test_any_text_is_read(parameters: Parameters) -> None:
    for quote in (quote_plus, urlquote):
        body = urlencode(parameters, quote_via=quote).encode()
        assert read_parameters(b"", body) == parameters


def test_deep_names_are_ignored() -> None:
    members = {"Unknown" + ".1" * 100_000: "x", "MessageBody.1.2": "y", "." * 1_000: "z"}
    assert send(members) == SendMessageRequest(queue_url="q", message_body="b")
    deep = {"MessageAttribute" + ".1" * 100_000: "x"}
    assert refusal(SEND, QueueUrl="q", MessageBody="b", **deep).code == "MissingParameter"


@given(ANY_ACTION, ANY_PARAMETERS)
def test_any_parameters(action: Action, parameters: Parameters) -> None:
    try:
        request = decode_request(action, parameters, queue_url="q")
    except SqsError as error:
        fault = error
    else:
        assert type(request) is action.request
        return
    assert fault.status == 400
    assert fault.code in ("InvalidParameterValue", "MissingParameter")


@example("a=b=%41=+%2B%3d", b"")
@given(st.lists(st.sampled_from("=%&+;41zé \n\r\t_.")).map("".join), st.binary(max_size=50))
def test_any_form_is_read_as_by_the_standard_library(text: str, wire: bytes) -> None:
    for body in (text.encode(), wire):
        if re.search(rb"%(?![0-9a-fA-F]{2})", body):
            with pytest.raises(SqsError):
                read_parameters(b"", body)
            continue
        try:
            expected = dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict"))
        except UnicodeDecodeError:
            with pytest.raises(SqsError):
                read_parameters(b"", body)
        else:
            assert read_parameters(b"", body) == expected
