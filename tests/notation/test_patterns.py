"""Errors about text in requests say in words what was expected."""

from typing import Annotated

import msgspec
import pytest

from holdfast.notation import patterns
from holdfast.notation.job import JobId, QueueName, Seconds, TaskName
from holdfast.notation.patterns import without_patterns
from holdfast.server.rest.shapes import Cursor, LabelPair, Rate


class Request(msgspec.Struct):
    delay: Seconds = 0
    queue: QueueName = "default"
    task: TaskName = "t"
    id: JobId = "a"
    rate: Rate = "1/s"
    label: LabelPair = "a=b"
    after: Cursor = "1"
    text: Annotated[str, msgspec.Meta(pattern=patterns.NO_NUL)] = ""
    other: Annotated[str, msgspec.Meta(pattern="^a+b'$")] = "ab'"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            {"delay": "soon"},
            'expected a duration such as "30s", "5m", "2h" or "1d", or a number of seconds',
        ),
        ({"queue": "a b"}, "expected 1 to 80 letters, digits or characters of _.-"),
        ({"task": ""}, "expected 1 to 200 letters, digits or characters of _.:/-"),
        ({"id": "\n"}, "expected 1 to 128 letters, digits or characters of _.:@-"),
        ({"rate": "10"}, 'expected a rate such as "100/m", "5/s" or "100/m burst 20"'),
        ({"label": "a"}, "expected a name and a value, such as region=eu"),
        ({"after": "last"}, "expected `after` of the last page"),
        ({"text": "\0"}, "expected text without NUL characters"),
        # An expression that nobody has put in words stays as it is.
        ({"other": "b"}, 'Expected `str` matching regex "^a+b\'$"'),
    ],
)
def test_an_error_names_what_was_expected(wrong: dict[str, str], says: str) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(wrong, Request)
    [field] = wrong
    assert without_patterns(str(raised.value)) == f"{says} - at `$.{field}`"


def test_other_errors_stay_as_they_are() -> None:
    assert without_patterns("Expected `int`, got `str`") == "Expected `int`, got `str`"
