"""Arguments → payload → arguments: what is accepted when enqueued can be called by the worker."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Context
from holdfast.app.signature import BatchSignature, Signature
from holdfast.core.model import Job, State
from holdfast.errors import InvalidJob, ResultMismatch, UsageError

if TYPE_CHECKING:
    from fractions import Fraction

JSON = "application/json"
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@dataclass
class Address:
    street: str
    number: int = 1


class Colour(Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: int


class Handmade:
    pass


def done(result: bytes | None) -> Job:
    return Job(id="j", task="t", queue="q", state=State.DONE, result=result)


def plain(to: str, count: int = 1) -> None: ...
def only_by_name(*, to: str) -> None: ...
def only_by_place(first: int, second: int = 2, /) -> None: ...
def several(first: int, *rest: int, **more: str) -> None: ...
def with_context(to: str, *, ctx: Context) -> None: ...
def context_first(ctx: Context, to: str) -> None: ...
def context_or_none(to: str, ctx: Context | None = None) -> None: ...
def context_by_text(to: str, ctx: "Context") -> None: ...
def untyped(anything, more=None): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
def rich(
    *, at: datetime, address: Address, colour: Colour, point: Point, id: UUID, price: Decimal,
    tags: set[str], pair: tuple[int, str], by_number: dict[int, str], raw: bytes,
) -> None: ...  # fmt: skip
def bounded(count: Annotated[int, msgspec.Meta(ge=1)]) -> None: ...
def one_body(body: bytes) -> None: ...
def many_bodies(bodies: list[bytes]) -> None: ...


def called(function: Callable[..., Any], *args: Any, **named: Any) -> tuple[Any, Any]:
    signature = Signature("t", function)
    return signature.arguments(signature.payload(args, named), JSON)


def test_arguments_are_stored_by_name_and_defaults_not_at_all() -> None:
    assert Signature("t", plain).payload(("a",), {}) == b'{"to":"a"}'
    assert Signature("t", plain).payload((), {"count": 3, "to": "a"}) == b'{"to":"a","count":3}'
    assert Signature("t", lambda: None).payload((), {}) == b"{}"
    assert called(plain, "a") == ((), {"to": "a"})
    assert called(only_by_name, to="a") == ((), {"to": "a"})
    assert called(only_by_place, 1) == ((1,), {})
    assert called(only_by_place, 1, 3) == ((1, 3), {})
    assert called(several, 1, 2, 3, a="b") == ((1, 2, 3), {"a": "b"})
    assert called(several, first=1, a="b") == ((), {"first": 1, "a": "b"})
    assert called(untyped, {"a": [1]}, None) == ((), {"anything": {"a": [1]}, "more": None})


def test_rich_types_arrive_as_they_left() -> None:
    given = {
        "at": NOW, "address": Address("x", 2), "colour": Colour.RED, "point": Point(1),
        "id": UUID(int=7), "price": Decimal("1.10"), "tags": {"a"}, "pair": (1, "b"),
        "by_number": {1: "a"}, "raw": b"\xff",
    }  # fmt: skip
    assert called(rich, **given) == ((), given)


@pytest.mark.parametrize(
    "function", [with_context, context_first, context_or_none, context_by_text]
)
def test_the_context_is_no_argument(function: Callable[..., Any]) -> None:
    signature = Signature("t", function)
    assert signature.context == "ctx"
    assert signature.payload(("a",), {}) == b'{"to":"a"}'
    with pytest.raises(InvalidJob, match="ctx of task t is passed by the worker: leave it out"):
        signature.payload(("a",), {"ctx": 1})
    with pytest.raises(InvalidJob, match="ctx: there is no such argument"):
        signature.arguments(b'{"to":"a","ctx":1}', JSON)


@pytest.mark.parametrize(
    ("function", "args", "named", "says"),
    [
        (plain, (), {}, "missing a required argument: 'to'"),
        (plain, ("a", 1, 2), {}, "too many positional arguments"),
        (plain, ("a",), {"cuont": 1}, "unexpected keyword argument 'cuont'"),
        (plain, ("a",), {"to": "b"}, "multiple values for argument 'to'"),
        (plain, (7,), {}, "task t: to: Expected str, got int"),
        (plain, ("a",), {"count": "3"}, "task t: count: Expected int, got str"),
        (plain, ("a",), {"count": True}, "count: Expected int, got bool"),
        (plain, (object(),), {}, "task t: to: the value cannot be written as JSON"),
        (untyped, (float("nan"),), {}, "task t: anything: the value cannot be written as JSON"),
        (untyped, ("\ud800",), {}, "anything: the value cannot be written"),
        (several, (1, "b"), {}, r"rest\[0\]: Expected int, got str"),
        (several, (1,), {"a": 1}, "task t: a: Expected str, got int"),
        (several, (1,), {"rest": "x"}, "rest is given twice or by a wrong name"),
        (bounded, (0,), {}, "count: Expected int >= 1"),
        (only_by_place, (), {"first": 1}, "'first'"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(
    function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidJob, match=says):
        Signature("t", function).payload(args, named)


def test_what_is_wrong_deep_inside_is_named_with_its_path() -> None:
    def function(address: Address) -> None: ...

    with pytest.raises(InvalidJob, match=r"address\.number: Expected int, got str"):
        Signature("t", function).payload(({"street": "x", "number": "y"},), {})
    with pytest.raises(InvalidJob, match=r"address\.street: it is missing"):
        Signature("t", function).payload(({},), {})


@pytest.mark.parametrize(
    ("payload", "arguments"),
    [
        (b'{"to":"a","count":2}', ((), {"to": "a", "count": 2})),
        (b'["a"]', ((), {"to": "a"})),
        (b'["a", 2]', ((), {"to": "a", "count": 2})),
    ],
)
def test_others_may_enqueue_by_name_or_by_place(payload: bytes, arguments: Any) -> None:
    assert Signature("t", plain).arguments(payload, JSON) == arguments


def test_a_default_before_a_given_place_is_filled_in() -> None:
    assert Signature("t", several).arguments(b'{"first":1,"rest":[2]}', JSON) == ((1, 2), {})

    def function(a: int = 1, b: int = 2, /) -> None: ...

    assert Signature("t", function).arguments(b'{"b":5}', JSON) == ((1, 5), {})
    for none in (b"", b"null", b"{}", b"[]"):
        assert Signature("t", function).arguments(none, JSON) == ((), {})


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b'{"to":"a"', "cannot be read"),
        (b'{"to":"\xff"}', "cannot be read"),
        (b"{" * 3, "cannot be read"),
        (b'{"a":' * 100_000, "cannot be read|no such argument"),
        (b'"a"', "is a str: it must be an object"),
        (b"7", "is an int: it must be an object"),
        (b"[1, 2, 3]", "too many positional"),
        (b"[7]", "to: Expected str, got int"),
        (b"nonsense", "not JSON"),
        (b'{"count":1}', "to: it is missing"),
        (b'{"to":"a","x":1}', "x: there is no such argument"),
    ],
)
def test_a_hostile_payload_is_a_usage_error_and_nothing_else(payload: bytes, says: str) -> None:
    with pytest.raises(InvalidJob, match=says):
        Signature("t", plain).arguments(payload, JSON)


def test_raw_bytes_are_for_a_task_with_one_parameter() -> None:
    signature = Signature("t", one_body)
    assert signature.arguments(b"\xff", "application/octet-stream") == ((), {"body": b"\xff"})
    batch = BatchSignature("t", many_bodies)
    assert batch.arguments(b"\xff", "image/png") == ((b"\xff",), {})
    assert Signature("t", plain).arguments(b'["a"]', f"{JSON}; charset=utf-8")[1] == {"to": "a"}
    with pytest.raises(
        InvalidJob, match="task t takes JSON, but the job has content type image/png"
    ):
        Signature("t", plain).arguments(b"\xff", "image/png")


def test_a_hint_that_cannot_be_resolved_or_carried_is_said_so() -> None:
    def lost(value: "Fraction") -> None: ...

    with pytest.raises(UsageError, match="'Fraction' of parameter value of task t cannot be res"):
        Signature("t", lost)

    def custom(value: Handmade) -> None: ...
    def deeper(value: dict[str, list[Handmade]]) -> None: ...

    for function in (custom, deeper):
        with pytest.raises(UsageError, match="parameter value of task t cannot be checked: Handma"):
            Signature("t", function)

    def torn(value: Point | Address) -> None: ...

    with pytest.raises(UsageError, match="parameter value of task t cannot be checked"):
        Signature("t", torn)


def test_a_batch_task_takes_an_element_a_job() -> None:
    def batch(points: list[Point], contexts: list[Context]) -> list[int]:
        return [point.x for point in points]

    signature = BatchSignature("t", batch)
    assert (signature.context, signature.answer) == ("contexts", int)
    assert signature.payload((Point(3),), {}) == b'{"x":3}'
    assert signature.arguments(b'{"x":3}', JSON) == ((Point(3),), {})
    with pytest.raises(InvalidJob, match=r"points\[…\]\.x: Expected int, got str"):
        signature.payload(({"x": "3"},), {})
    with pytest.raises(InvalidJob, match="cannot be read"):
        signature.arguments(b"{", JSON)
    for args, named in (((), {}), ((1, 2), {}), ((), {"points": 1})):
        with pytest.raises(InvalidJob, match="takes one argument per job"):
            signature.payload(args, named)

    def two(first: list[int], second: list[int]) -> None: ...

    with pytest.raises(UsageError, match="batch task t must have one parameter"):
        BatchSignature("t", two)


def everything(a, b=2, /, c=3, *rest, d, e=5, **more):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003, ANN201
    return a, b, c, rest, d, e, more


def no_rest(a, b=2, /, c=3, *, d=4):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    return a, b, c, d


def by_name_too(a, b=2, *, c, d=4):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    return a, b, c, d


@pytest.mark.parametrize("function", [everything, no_rest, by_name_too])
@given(
    positional=st.lists(st.integers(), max_size=5),
    named=st.dictionaries(st.sampled_from("abcdefg"), st.integers(), max_size=4),
)
def test_a_call_that_python_takes_arrives_as_it_was_made_and_no_other_does(
    function: Callable[..., Any], positional: list[int], named: dict[str, int]
) -> None:
    signature = Signature("t", function)
    # Python has room for a second value under the name of a parameter that goes by its place.
    ambiguous = function is everything and named.keys() & {"a", "b"}
    try:
        wanted = function(*positional, **named)
    except TypeError:
        wanted = None
    if wanted is None or ambiguous:
        with pytest.raises(InvalidJob):
            signature.payload(tuple(positional), named)
        return
    args, names = signature.arguments(signature.payload(tuple(positional), named), JSON)
    assert function(*args, **names) == wanted


@pytest.mark.parametrize(
    ("returned", "stored", "read"),
    [
        (None, None, None),
        (b"\xff", b"\xff", b"\xff"),
        ({"a": 1}, b'{"a":1}', {"a": 1}),
        (NOW, b'"2026-05-01T12:00:00Z"', "2026-05-01T12:00:00Z"),
    ],
)
def test_a_result_without_annotation_is_read_as_json_has_it(
    returned: object, stored: bytes | None, read: object
) -> None:
    signature = Signature("t", untyped)
    assert signature.result(returned) == stored
    assert signature.read_result(done(stored)) == read


def when() -> datetime: ...  # type: ignore[empty-body]
def raw() -> bytes: ...  # type: ignore[empty-body]
def raw_or_none() -> bytes | None: ...
def raw_or_number() -> bytes | int: ...  # type: ignore[empty-body]
def nothing() -> None: ...
def anything() -> object: ...
def one_of(points: list[Point]) -> list[int] | None: ...
def failing(points: list[Point]) -> list[datetime | ValueError]: ...  # type: ignore[empty-body]
def by_batch(points: list[Point]) -> None: ...


@pytest.mark.parametrize(
    ("function", "returned"),
    [
        (when, NOW),
        (raw, b"7"),
        (raw, b"\xff"),
        (raw_or_none, b"7"),
        (raw_or_none, None),
        (raw_or_number, b"7"),
        (raw_or_number, 5),
        (nothing, None),
        (anything, {"a": [1]}),
    ],
)
def test_a_result_is_read_as_its_annotation_says(
    function: Callable[..., Any], returned: object
) -> None:
    signature = Signature("t", function)
    assert signature.read_result(done(signature.result(returned))) == returned


@pytest.mark.parametrize(
    ("function", "returned"), [(one_of, 7), (failing, NOW), (by_batch, None), (by_batch, "x")]
)
def test_a_result_of_a_batch_task_is_an_element_of_its_list(
    function: Callable[..., Any], returned: object
) -> None:
    signature = BatchSignature("t", function)
    assert signature.read_result(done(signature.result(returned))) == returned


@pytest.mark.parametrize(
    ("function", "stored", "says"),
    [
        (when, b"7", "result of job j does not fit the return annotation of task t: Expected date"),
        (when, None, "Expected datetime, got null"),
        (when, b"\xff", "JSON is malformed"),
        (raw, None, "Expected bytes, got null"),
        (nothing, b"7", "Expected null, got int"),
    ],
)
def test_a_result_that_does_not_fit_is_never_returned(
    function: Callable[..., Any], stored: bytes | None, says: str
) -> None:
    with pytest.raises(ResultMismatch, match=says) as caught:
        Signature("t", function).read_result(done(stored))
    assert caught.value.job.result == stored
    assert caught.value.code == "result_mismatch"


def test_a_worker_needs_no_return_annotation_but_a_reader_does() -> None:
    def lost() -> "Fraction": ...  # type: ignore[empty-body]
    def custom() -> Handmade: ...  # type: ignore[empty-body]

    assert Signature("t", lost).result(1) == b"1"
    with pytest.raises(UsageError, match="'Fraction' of task t cannot be resolved: import it"):
        Signature("t", lost).read_result(done(b"1"))
    assert Signature("t", custom).result(1) == b"1"
    with pytest.raises(UsageError, match="the result of task t cannot be checked: Handmade"):
        Signature("t", custom).read_result(done(b"1"))
