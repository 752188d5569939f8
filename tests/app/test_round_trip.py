"""Values of every supported type arrive as they were given, or are refused at enqueue."""

import enum
import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.app.signature import BatchSignature, Signature
from holdfast.errors import InvalidJob

JSON = "application/json"


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Line:
    name: str
    price: Decimal
    file: Path | None = None


@dataclass
class Order:
    id: UUID
    lines: list[Line]
    at: datetime | None = None


class Rush(Order):
    pass


@dataclass(eq=False)
class Uncompared:
    number: int


@attrs.define
class Box:
    width: int = attrs.field(validator=attrs.validators.gt(0))
    paths: list[Path] = attrs.field(factory=list)
    _private: int = 0


@attrs.define
class Locked:
    _code: int


class Point(msgspec.Struct, rename="camel"):
    east_side: int
    label: Colour = Colour.RED


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Settings(TypedDict, total=False):
    when: date
    where: Path


def task_of(hint: Any) -> Signature:
    def function(v): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202

    function.__annotations__ = {"v": hint, "return": hint}
    return Signature("t", function)


def arrived(hint: Any, value: Any) -> Any:
    signature = task_of(hint)
    (_, named) = signature.arguments(signature.payload((value,), {}), JSON)
    return named["v"]


paths = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).map(Path)
# Before 1893 clocks in Berlin had an offset with seconds, which JSON text has no room for.
zones: Any = st.none() | st.just(UTC) | st.just(ZoneInfo("Europe/Berlin"))
instants = st.datetimes(min_value=datetime(1900, 1, 1), timezones=zones)  # noqa: DTZ001
lines = st.builds(Line, st.text(), st.decimals(), st.none() | paths)
KINDS: dict[Any, st.SearchStrategy[Any]] = {
    datetime: instants,
    date: st.dates(),
    time: st.times(),
    timedelta: st.timedeltas(),
    UUID: st.uuids(),
    Decimal: st.decimals(),
    Path: paths,
    bytes: st.binary(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    int: st.integers(),
    Colour: st.sampled_from(Colour),
    Level: st.sampled_from(Level),
    Access: st.sets(st.sampled_from(Access)).map(
        lambda some: functools.reduce(operator.or_, some, Access(0))
    ),
    Line: lines,
    Order: st.builds(Order, st.uuids(), st.lists(lines, max_size=2), st.none() | instants),
    Box: st.builds(Box, st.integers(1, 9), st.lists(paths, max_size=2)),
    Point: st.builds(Point, st.integers(), st.sampled_from(Colour)),
    Pair: st.builds(Pair, st.integers(), st.text()),
    Settings: st.fixed_dictionaries({}, optional={"when": st.dates(), "where": paths}),
    Uncompared: st.builds(Uncompared, st.integers()),
    frozenset[UUID]: st.frozensets(st.uuids(), max_size=2),
    dict[UUID, Line]: st.dictionaries(st.uuids(), lines, max_size=2),
    dict[date, int]: st.dictionaries(st.dates(), st.integers(), max_size=2),
    dict[Path, int]: st.dictionaries(paths, st.integers(), max_size=2),
    dict[int, Path | None]: st.dictionaries(st.integers(), st.none() | paths, max_size=2),
    tuple[Decimal, ...]: st.lists(st.decimals(), max_size=3).map(tuple),
    Any: st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text()
        | st.floats(allow_nan=False, width=16),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
        max_leaves=4,
    ),
}


@pytest.mark.parametrize("hint", KINDS, ids=str)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_value_arrives_as_it_was_given(hint: Any, data: st.DataObject) -> None:
    value = data.draw(KINDS[hint])
    signature = task_of(hint)
    try:
        payload = signature.payload((value,), {})
    except InvalidJob as error:
        # An infinite float under Any; a path or a text with a lone surrogate.
        assert "cannot be written as JSON" in str(error)  # noqa: PT017 (a hostile value may pass)
        return
    (_, named) = signature.arguments(payload, JSON)
    assert type(named["v"]) is type(value)
    # Compared by their text, for NaN does not equal NaN and an instant loses the name of its zone.
    assert shown(named["v"]) == shown(value)
    assert msgspec.json.decode(payload).keys() == {"v"}


def shown(value: Any) -> str:
    if isinstance(value, datetime | time):
        return value.isoformat()
    if isinstance(value, Order):
        return f"{value.id} {value.lines} {shown(value.at)}"
    if isinstance(value, frozenset):
        return str(sorted(value))
    if isinstance(value, Uncompared):
        return str(value.number)
    return repr(value)


@pytest.mark.parametrize(
    ("hint", "value", "written"),
    [
        (Path, Path("a/b"), '"a/b"'),
        (Decimal, Decimal("1.10"), '"1.10"'),
        (timedelta, timedelta(days=1, minutes=90), '"P1DT5400S"'),
        (date, date(2026, 5, 1), '"2026-05-01"'),
        (time, time(12, 30), '"12:30:00"'),
        (datetime, datetime(2026, 5, 1, 12, tzinfo=UTC), '"2026-05-01T12:00:00Z"'),
        (UUID, UUID(int=7), '"00000000-0000-0000-0000-000000000007"'),
        (Colour, Colour.RED, '"red"'),
        (Access, Access.READ | Access.WRITE, "3"),
        (list[object], [1, "a", None], '[1,"a",null]'),
        (dict[str, object], {"a": [1.5]}, '{"a":[1.5]}'),
        (Line, Line("a", Decimal(1)), '{"name":"a","price":"1","file":null}'),
        (Point, Point(1), '{"eastSide":1,"label":"red"}'),
        (Pair, Pair(1), '[1,"r"]'),
        (bytes, b"\xff", '"/w=="'),
        (dict[date, int], {date(2026, 5, 1): 1}, '{"2026-05-01":1}'),
    ],
)
def test_the_payload_is_what_a_person_would_write(hint: Any, value: Any, written: str) -> None:
    signature = task_of(hint)
    assert signature.payload((value,), {}).decode() == f'{{"v":{written}}}'
    assert signature.result(value) == (value if hint is bytes else written.encode())


@pytest.mark.parametrize(
    ("hint", "given", "wanted"),
    [
        (datetime, "2026-05-01T14:00:00+02:00", datetime(2026, 5, 1, 12, tzinfo=UTC)),
        (Path, "a/b", Path("a/b")),
        (PurePosixPath, "a/b", PurePosixPath("a/b")),
        (timedelta, "PT90M", timedelta(minutes=90)),
        (Decimal, "1.10", Decimal("1.10")),
        (Decimal, 1.1, Decimal("1.1")),
        (Colour, "red", Colour.RED),
        (Level, 2, Level.HIGH),
        (float, 1, 1.0),
        (Line, {"name": "a", "price": "1"}, Line("a", Decimal(1))),
        (Line, {"name": "a", "price": Decimal(1)}, Line("a", Decimal(1))),
        (list[Line], ({"name": "a", "price": 1},), [Line("a", Decimal(1))]),
        (set[int], [1, 1], {1}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (Pair, [1], Pair(1)),
        (dict[int, str], {"1": "a"}, {1: "a"}),
        (Any, (1, (2,)), [1, [2]]),
    ],
)
def test_a_value_in_the_form_of_json_becomes_its_type(hint: Any, given: Any, wanted: Any) -> None:
    assert arrived(hint, given) == wanted


BERLIN_TWICE = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))


@pytest.mark.parametrize("fold", [0, 1])
def test_an_instant_in_the_hour_that_clocks_repeat_arrives(fold: int) -> None:
    sent = BERLIN_TWICE.replace(fold=fold)
    assert arrived(datetime, sent).timestamp() == sent.timestamp()


def test_what_is_given_as_a_constant_must_be_one_of_them() -> None:
    assert arrived(Literal["a", "b"], "b") == "b"
    with pytest.raises(InvalidJob, match="task t: v: Invalid enum value 'c'"):
        arrived(Literal["a", "b"], "c")


@pytest.mark.parametrize(
    ("hint", "value", "says"),
    [
        (Any, b"x", "v: a value of type bytes would arrive as str: name bytes in the type hint"),
        (Any, {1}, "v: a value of type set would arrive as list"),
        (list[object], [{1}], r"v\[0\]: a value of type set would arrive as list"),
        (Any, {"a": [Decimal(1)]}, r"v\['a'\]\[0\]: a value of type Decimal would arrive as str"),
        (Any, {1: 2}, r"v \(a key\): a value of type int would arrive as str"),
        (Any, Line("a", Decimal(1)), "a value of type Line would arrive as dict"),
        (Any, Pair(1), "a value of type Pair would arrive as list"),
        (Any, Path("a"), "a value of type PosixPath would arrive as str"),
        (
            dict[str, Any],
            {"a": Colour.RED},
            r"v\['a'\]: a value of type Colour would arrive as str",
        ),
        (Any, {1: 2, "1": 3}, "v: this dict would arrive as another value"),
        (Order, Rush(UUID(int=1), []), "v: a value of type Rush would arrive as Order"),
        (list[int], {1, 2}, "v: a value of type set would arrive as list"),
        (Path, Path("\udcff"), "task t: v: the value cannot be written as JSON"),
        (Path, 7, "task t: v: Expected Path, got int"),
        (list[Path], ["a", None], r"task t: v\[1\]: Expected Path, got NoneType"),
        (Order, Order(UUID(int=1), [Line("a", "x")]), r"v\.lines\[0\]\.price: it is not a number"),  # type: ignore[arg-type]
        (Box, {"width": 0}, "task t: v: 'width' must be > 0: 0"),
        (Locked, Locked(7), r"v\._code: a private field is not stored: give it a default"),
        (Box, Box(1, private=7), r"v\._private: this int would arrive as another value"),
        (Line, Line("a", float("nan")), "v: the value cannot be written as JSON"),  # type: ignore[arg-type]
        (dict[int, str], {"x": "a"}, r"task t: v \(a key\): Expected int, got str"),
        (datetime, "2030-01-31", "task t: v: it is not a date and time such as 2030-01-31T12:00"),
        (date, "tomorrow", "task t: v: it is not a date such as 2030-01-31"),
        (list[UUID], ["7"], r"task t: v\[0\]: it is not a UUID such as 6ba7b810-"),
        (timedelta, "90m", "task t: v: it is not a duration such as PT90M"),
        (Literal["a"], "x" * 10_000, "v: Invalid enum value 'x{200,300}…"),
    ],
)
def test_what_would_arrive_changed_is_refused(hint: Any, value: Any, says: str) -> None:
    with pytest.raises(InvalidJob, match=says) as caught:
        arrived(hint, value)
    assert len(str(caught.value)) < 500


def test_an_offset_with_seconds_is_refused() -> None:
    odd = timezone(timedelta(hours=1, seconds=7))
    with pytest.raises(InvalidJob, match="v: this datetime would arrive as another value"):
        arrived(datetime, datetime(2026, 5, 1, tzinfo=odd))


def test_a_batch_task_refuses_an_element_that_would_arrive_changed() -> None:
    def store(orders: list[Order]) -> list[Path]: ...  # type: ignore[empty-body]

    signature = BatchSignature("t", store)
    order = Order(UUID(int=1), [Line("a", Decimal(1), Path("a"))])
    assert signature.arguments(signature.payload((order,), {}), JSON) == ((order,), {})
    with pytest.raises(InvalidJob, match=r"task t: orders\[…\]: a value of type Rush would arr"):
        signature.payload((Rush(UUID(int=1), []),), {})
    with pytest.raises(InvalidJob, match=r"task t: orders\[…\]: the value cannot be written"):
        signature.payload((object(),), {})


class Sender:
    def __call__(self, to: Path) -> int: ...  # type: ignore[empty-body]

    def send(self, to: Path) -> int: ...  # type: ignore[empty-body]


def copy(source: int, to: Path) -> int: ...  # type: ignore[empty-body]


@pytest.mark.parametrize("function", [Sender(), Sender().send, functools.partial(copy, 1)])
def test_callables_keep_their_hints(function: Callable[..., Any]) -> None:
    signature = Signature("t", function)
    payload = signature.payload((), {"to": Path("a")})
    assert signature.arguments(payload, JSON) == ((), {"to": Path("a")})
    assert signature.answer is int
