"""Message attributes: checks with AWS's texts, sizes, MD5s that clients compute, selection."""

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.text import xml_bytes
from holdfast.server.sqs import errors
from holdfast.server.sqs.errors import SqsError
from holdfast.server.sqs.message_attributes import (
    TRACE_HEADER_BYTES_MAX,
    check_fifo_id,
    check_message_attributes,
    check_system_attributes,
    checked_body,
    md5_of,
    md5_of_attributes,
    message_size,
    selected_message_attributes,
    selected_system_attributes,
)
from holdfast.server.sqs.shapes import MessageAttributes, MessageAttributeValue


def text(value: str | None, data_type: str = "String") -> MessageAttributeValue:
    return MessageAttributeValue(data_type=data_type, string_value=value)


def binary(value: bytes | None, data_type: str = "Binary") -> MessageAttributeValue:
    return MessageAttributeValue(data_type=data_type, binary_value=value)


def refusal(attributes: MessageAttributes) -> SqsError:
    with pytest.raises(SqsError) as caught:
        check_message_attributes(attributes)
    return caught.value


@pytest.mark.parametrize(
    "body", ["a", "\t\n\r ~\x7f\x80", "é€😀", "\ud7ff\ue000\ufffd\U00010000\U0010ffff"]
)
def test_legal_bodies(body: str) -> None:
    assert checked_body(body) == body.encode()


@pytest.mark.parametrize("code", [*range(9), 0xB, 0xC, *range(0xE, 0x20), 0xD800, 0xFFFE, 0xFFFF])
def test_illegal_characters(code: int) -> None:
    for body in (chr(code), f"a{chr(code)}b", f"é{chr(code)}"):
        with pytest.raises(SqsError) as caught:
            checked_body(body)
        assert caught.value.shape == "InvalidMessageContents"


@given(st.text(st.characters(codec=None)))
def test_legal_characters_are_those_of_xml(body: str) -> None:
    legal = all(
        char in "\t\n\r"
        or " " <= char <= "\ud7ff"
        or "\ue000" <= char <= "\ufffd"
        or char >= "\U00010000"
        for char in body
    )
    assert (xml_bytes(body) is not None) == legal


def test_an_empty_body_is_a_missing_one() -> None:
    with pytest.raises(SqsError) as caught:
        checked_body("")
    assert caught.value.code == "MissingParameter"
    assert caught.value.message == "The request must contain the parameter MessageBody."


@pytest.mark.parametrize(
    "name", ["a", "A.b-c_9", "é", "Ünïcode", "x" * 256, "awsome", "amazonas", "a.b.c", "AWS"]
)
def test_valid_names(name: str) -> None:
    check_message_attributes({name: text("v")})


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", ".a", "a.", "a..b", "AWS.x", "aws.x", "Amazon.x", "aMaZoN.x", "x" * 257),
        *("a b", "a/b", "a\n", "a\x00", "a:b", pytest.param("x" * 1_000_000, id="long")),
    ],
)
def test_refused_names(name: str) -> None:
    error = refusal({name: text("v")})
    assert error.code == "InvalidParameterValue"
    assert len(error.message) < 1_000


@pytest.mark.parametrize(
    "value",
    [
        text("v"),
        text("v", "String.custom"),
        text("1", "Number"),
        text("-1.5e10", "Number.float"),
        text("0", "Number.int"),
        text("9" * 38, "Number"),
        text("1e126", "Number"),
        text("1e-128", "Number"),
        text(".5", "Number"),
        text("+5.", "Number"),
        text("1" + "0" * 100, "Number"),
        binary(b"\x00\xff"),
        binary(b"\x00", "Binary.gif"),
        text("v", "String." + "x" * 249),
    ],
)
def test_valid_values(value: MessageAttributeValue) -> None:
    check_message_attributes({"k": value})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (text(""), "Message (user) attribute 'k' must contain a non-empty value of type 'String'."),
        (
            text(None),
            "Message (user) attribute 'k' must contain a non-empty value of type 'String'.",
        ),
        (
            binary(b""),
            "Message (user) attribute 'k' must contain a non-empty value of type 'Binary'.",
        ),
        (
            text("v", ""),
            "The message (user) attribute 'k' must contain a non-empty message attribute type.",
        ),
        (
            MessageAttributeValue(data_type="String", string_value="v", binary_value=b"v"),
            "Message (user) attribute 'k' must have a single value.",
        ),
        (
            text("v", "Binary"),
            "Message (user) attribute 'k' with type 'Binary' must use field 'Binary'.",
        ),
        (
            binary(b"v", "String"),
            "Message (user) attribute 'k' with type 'String' must use field 'String'.",
        ),
        (
            text("abc", "Number"),
            "Can't cast the value of message (user) attribute 'k' to a number.",
        ),
        (text("v", "String." + "x" * 250), "Message (user) attribute type must be shorter than"),
        (text("v\x00"), "Invalid characters found."),
    ],
)
def test_refused_values(value: MessageAttributeValue, message: str) -> None:
    error = refusal({"k": value})
    assert error.code == "InvalidParameterValue"
    assert error.message.startswith(message)


@pytest.mark.parametrize(
    "data_type", ["string", "Text", "Str", "Stringx", "String ", ".String", "Number\x00", "Bool"]
)
def test_refused_types(data_type: str) -> None:
    assert refusal({"k": text("1", data_type)}).message == (
        "The type of message (user) attribute 'k' is invalid. You must use only the following"
        " supported type prefixes: Binary, Number, String."
    )


def test_a_label_needs_no_text() -> None:
    check_message_attributes({"k": text("1", "Number.")})


@pytest.mark.parametrize(
    "number",
    [
        *("", ".", "+", "e5", "1e", "1,5", "0x1", "NaN", "Infinity", "1_0", " 1", "1\n", "--1"),
        *("٣", "1" * 39, "1e127", "1e-129", "1e99999", "1." + "1" * 38),
        pytest.param("9" * 1_000_000, id="long"),
    ],
)
def test_refused_numbers(number: str) -> None:
    assert refusal({"k": text(number, "Number")}).code == "InvalidParameterValue"


def test_lists_are_not_supported() -> None:
    value = MessageAttributeValue(data_type="String", string_list_values=("a",))
    assert refusal({"k": value}).shape == "UnsupportedOperation"


def test_ten_attributes_and_not_eleven() -> None:
    check_message_attributes({str(n): text("v") for n in range(10)})
    assert refusal({str(n): text("v") for n in range(11)}).message == (
        "Number of message attributes [11] exceeds the allowed maximum [10]."
    )


def test_valid_and_refused_system_attributes() -> None:
    check_system_attributes({"AWSTraceHeader": text("Root=1-5759e988-bd862e3fe1be46a994272793")})
    check_system_attributes({"AWSTraceHeader": text("x" * TRACE_HEADER_BYTES_MAX)})
    for attributes in (
        {"SenderId": text("a")},
        {"x" * 1_000_000: text("a")},
        {"AWSTraceHeader": text("")},
        {"AWSTraceHeader": text("1", "Number")},
        {"AWSTraceHeader": text("1", "String.label")},
        {"AWSTraceHeader": binary(b"1")},
        {"AWSTraceHeader": text("x" * (TRACE_HEADER_BYTES_MAX + 1))},
    ):
        with pytest.raises(SqsError) as caught:
            check_system_attributes(attributes)
        assert caught.value.code == "InvalidParameterValue"
        assert len(caught.value.message) < 1_200


@pytest.mark.parametrize("value", ["a", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "x" * 128])
def test_ids_of_fifo_messages(value: str) -> None:
    check_fifo_id("MessageGroupId", value)


@pytest.mark.parametrize("value", ["", " ", "a b", "é", "a\n", "x" * 129, "\x7f"])
def test_refused_ids_of_fifo_messages(value: str) -> None:
    with pytest.raises(SqsError) as caught:
        check_fifo_id("MessageGroupId", value)
    assert caught.value.message == errors.invalid_fifo_id("MessageGroupId", value).message


def test_the_size_counts_names_types_and_values_in_bytes() -> None:
    attributes = {"é": text("€", "String.ü"), "b": binary(b"\xff\xff")}
    assert message_size("😀".encode(), attributes) == 4 + (2 + 9 + 3) + (1 + 6 + 2)
    assert message_size(b"abc", {}) == 3


def test_known_md5s() -> None:
    """From AWS's developer guide and recordings of AWS."""
    assert md5_of(b"This is a test message") == "fafb00f5732ab283681e124bf8747ed1"
    assert md5_of_attributes({}) is None


def reference_md5(attributes: MessageAttributes) -> str:
    """The algorithm of the developer guide, written plainly."""
    wire = b""
    for name, value in sorted(attributes.items()):
        for part in (name.encode(), value.data_type.encode()):
            wire += struct.pack("!I", len(part)) + part
        if value.data_type.split(".")[0] == "Binary":
            assert value.binary_value is not None
            raw, kind = value.binary_value, 2
        else:
            assert value.string_value is not None
            raw, kind = value.string_value.encode(), 1
        wire += struct.pack("!BI", kind, len(raw)) + raw
    return hashlib.md5(wire).hexdigest()


VALUES = st.one_of(
    st.builds(text, st.text(min_size=1), st.sampled_from(["String", "Number.x", "String.é"])),
    st.builds(binary, st.binary(min_size=1), st.sampled_from(["Binary", "Binary.gif"])),
)


@given(st.dictionaries(st.text(min_size=1), VALUES, min_size=1))
def test_md5s_follow_the_algorithm_of_aws(attributes: MessageAttributes) -> None:
    assert md5_of_attributes(attributes) == reference_md5(attributes)


def test_selection_of_message_attributes() -> None:
    attributes = {name: text(name) for name in ("Foo", "Help.Me", "Hello", "help")}

    def selected(*names: str) -> list[str]:
        return sorted(selected_message_attributes(attributes, names))

    assert selected() == []
    assert selected("All") == selected(".*") == sorted(attributes)
    assert selected("Foo", "nothing") == ["Foo"]
    assert selected("Help.*") == ["Help.Me"]
    assert selected("Hel.*") == ["Hello", "Help.Me"]
    assert selected("Me.*") == []
    assert selected("Foo", "Help.*") == ["Foo", "Help.Me"]
    assert selected("*") == selected("foo") == selected("all") == []


def test_selection_of_system_attributes() -> None:
    values = {"SenderId": "a", "SentTimestamp": "1"}
    assert selected_system_attributes(values, ()) == {}
    assert selected_system_attributes(values, ("SenderId", "Policy")) == {"SenderId": "a"}
    assert selected_system_attributes(values, ("All",)) == values
