"""JSON encoding: values that JSON cannot represent are refused, all others survive."""

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.conformance import inputs
from holdfast.core import codec
from holdfast.core.model import Event, EventKind, Failure, Job
from holdfast.errors import InvalidJob
from tests.unit.core.strategies import jobs

texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


@given(values)
def test_what_goes_in_comes_out(value: Any) -> None:
    assert codec.decode(codec.encode(value)) == value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        [math.inf],
        {"a": -math.inf},
        "\ud800",
        {"\udfff": 1},
        endless(),
        deep(100_000),
        object(),
        {object(): 1},
        {(1, 2): 3},
        1j,
    ],
    ids=[
        "nan",
        "inf",
        "-inf",
        "surrogate",
        "name",
        "endless",
        "deep",
        "object",
        "key",
        "pair",
        "i",
    ],
)
def test_what_json_cannot_keep_is_refused(value: Any) -> None:
    with pytest.raises(InvalidJob):
        codec.encode(value)


@given(st.binary(max_size=200) | st.sampled_from(inputs.PAYLOADS))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        value = codec.decode(data)
    except InvalidJob:
        return
    json.dumps(value)


@pytest.mark.parametrize(
    "data", [b"", b"NaN", b"\xff", b"[" * 10_000, b"{", b'"\\ud800"', b"1e400"]
)
def test_bytes_that_are_no_json_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidJob):
        codec.decode(data)


# The examples of RFC 7396, appendix A.
@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ('{"a":"b"}', '{"a":"c"}', '{"a":"c"}'),
        ('{"a":"b"}', '{"b":"c"}', '{"a":"b","b":"c"}'),
        ('{"a":"b"}', '{"a":null}', "{}"),
        ('{"a":"b","b":"c"}', '{"a":null}', '{"b":"c"}'),
        ('{"a":["b"]}', '{"a":"c"}', '{"a":"c"}'),
        ('{"a":"c"}', '{"a":["b"]}', '{"a":["b"]}'),
        ('{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}', '{"a":{"b":"d"}}'),
        ('{"a":[{"b":"c"}]}', '{"a":[1]}', '{"a":[1]}'),
        ('["a","b"]', '["c","d"]', '["c","d"]'),
        ('{"a":"b"}', '["c"]', '["c"]'),
        ('{"a":"foo"}', "null", "null"),
        ('{"a":"foo"}', '"bar"', '"bar"'),
        ('{"e":null}', '{"a":1}', '{"e":null,"a":1}'),
        ("[1,2]", '{"a":"b","c":null}', '{"a":"b"}'),
        ("{}", '{"a":{"bb":{"ccc":null}}}', '{"a":{"bb":{}}}'),
        ("", '{"a":1}', '{"a":1}'),
    ],
)
def test_merge_patch(target: str, patch: str, result: str) -> None:
    assert codec.merge_patch(target.encode(), patch.encode()) == result.encode()


@given(st.sampled_from(inputs.PAYLOADS), st.sampled_from(inputs.PAYLOADS))
def test_merging_hostile_bytes_gives_json_or_a_refusal(target: bytes, patch: bytes) -> None:
    try:
        merged = codec.merge_patch(target, patch)
    except InvalidJob:
        return
    codec.decode(merged)


@given(jobs(), inputs.small_payloads)
def test_a_job_survives_its_line_of_json(job: Job, data: bytes) -> None:
    event = Event(at=1, kind=EventKind.RETRIED, failure=Failure(message="é\n"))
    whole = Job(
        **{name: getattr(job, name) for name in Job.__struct_fields__}
        | {"payload": data, "result": data, "events": (event,), "labels": {"a\n": "é"}}
    )
    line = codec.encode_job(whole)
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=Job) == whole
