"""Text for people."""

import pytest

from holdfast.core.text import counted, kind_of, without_credentials


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs"), (1_000, "1,000 jobs")]
)
def test_how_many(count: int, text: str) -> None:
    assert counted(count, "job") == text


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("amqp://guest:secret@host/v refused", "amqp://host/v refused"),
        ("amqps://u:p%40ss@host:5671 and http://x@y", "amqps://host:5671 and http://y"),
        ("amqp://u:sec@ret@host", "amqp://host"),
        ("amqp://u:sec/ret@host", "amqp://host"),
        ("amqp://host/vhost", "amqp://host/vhost"),
        ("write to ann@example.org", "write to ann@example.org"),
    ],
)
def test_credentials_are_left_out(text: str, plain: str) -> None:
    assert without_credentials(text) == plain


@pytest.mark.parametrize(
    ("value", "text"), [(None, "None"), (7, "an int"), ({}, "a dict"), (object(), "an object")]
)
def test_the_type_of_a_value(value: object, text: str) -> None:
    assert kind_of(value) == text
