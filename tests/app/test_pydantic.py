"""Pydantic models as arguments and results of tasks: they arrive exactly, or are refused."""

import enum
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID, uuid4

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, RootModel, SecretStr
from pydantic.alias_generators import to_camel

from holdfast import Context, Holdfast, ResultMismatch
from holdfast.app.signature import BatchSignature, Signature
from holdfast.errors import InvalidJob, UsageError
from holdfast.testing import inline

JSON = "application/json"
T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    ONE = 1


class Line(BaseModel):
    name: str
    price: Decimal = Field(gt=0)


class Order(BaseModel):
    id: UUID = Field(default_factory=uuid4)
    lines: list[Line]
    at: datetime | None = None
    file: Path | None = None
    colours: frozenset[Colour] = frozenset()
    wait: timedelta = timedelta()

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> Decimal:
        return sum((line.price for line in self.lines), Decimal())


class Rush(Order):
    pass


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")
    order_id: int


class ByName(Camel):
    model_config = ConfigDict(validate_by_name=True)


class NoAlias(Camel):
    model_config = ConfigDict(validate_by_alias=False, validate_by_name=True)


class ByAlias(Camel):
    model_config = ConfigDict(serialize_by_alias=True)


class TwoAliases(BaseModel):
    model_config = ConfigDict(extra="forbid")
    order_id: int = Field(validation_alias="read_as", serialization_alias="written_as")
    nested: Camel | None = None


class Crossed(BaseModel):
    left: int = Field(alias="right")
    right: int = Field(alias="left")


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)
    at: datetime
    ids: set[UUID]
    by: dict[UUID, Decimal]


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    anything: Any = None


class Measured(BaseModel):
    weight: float


class Excluded(BaseModel):
    kept: int
    left_out: int = Field(default=1, exclude=True)
    _private: int = pydantic.PrivateAttr(default=1)


class Hidden(BaseModel):
    card: str

    @pydantic.field_serializer("card")
    def hide(self, card: str) -> str:
        return "****" + card[-4:]


class Growing(BaseModel):
    name: str

    @pydantic.field_validator("name")
    @classmethod
    def grow(cls, name: str) -> str:
        return name + "!"


class Page(BaseModel, Generic[T]):
    items: list[T]


class Lines(RootModel[list[Line]]):
    pass


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Tree(BaseModel):
    children: list["Tree"] = []


@pydantic.dataclasses.dataclass
class Parcel:
    weight: Annotated[int, Field(gt=0)]
    label: bytes = b""


@dataclass
class Basket:
    line: Line
    parcel: Parcel | None = None


@attrs.define
class Shelf:
    lines: list[Line]


class Rack(msgspec.Struct):
    line: Line | None


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
LINE = Line(name="a", price=Decimal("1.50"))


def task_of(hint: Any, *, batch: bool = False) -> Signature:
    def function(v): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202

    whole = list[hint] if batch else hint
    function.__annotations__ = {"v": whole, "return": whole}
    return BatchSignature("t", function) if batch else Signature("t", function)


def arrived(hint: Any, value: Any) -> Any:
    signature = task_of(hint)
    _, named = signature.arguments(signature.payload((value,), {}), JSON)
    return named["v"]


orders = st.builds(
    Order,
    id=st.uuids(),
    lines=st.lists(st.builds(Line, name=st.text(), price=st.decimals(1, 9, places=2)), max_size=2),
    at=st.none() | st.datetimes(timezones=st.just(UTC)),
    file=st.none() | st.just(Path("a/b")),
    colours=st.frozensets(st.sampled_from(Colour)),
    wait=st.timedeltas(timedelta(-9), timedelta(9)),
)


@given(order=orders)
@settings(max_examples=25, deadline=None)
def test_a_model_arrives_as_it_was_given(order: Order) -> None:
    assert arrived(Order, order) == order
    assert arrived(list[Order] | None, [order]) == [order]
    assert arrived(dict[str, Order], {"a": order}) == {"a": order}
    batch = task_of(Order, batch=True)
    assert batch.arguments(batch.payload((order,), {}), JSON) == ((order,), {})


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Line | None, None),
        (Page[Line], Page[Line](items=[LINE])),
        (Lines, Lines([LINE])),
        (RootModel[int], RootModel[int](7)),
        (Pet, Dog(name="Rex")),
        (Cat | Dog, Cat(lives=3)),
        (int | Line, LINE),
        (int | Line, 7),
        (list[Pet], [Cat(), Dog(name="Rex")]),
        (Tree, Tree(children=[Tree()])),
        (Parcel, Parcel(3, b"x")),
        (Basket, Basket(LINE, Parcel(3))),
        (list[Basket], [Basket(LINE)]),
        (tuple[Line, ...], (LINE,)),
        (Shelf, Shelf([LINE])),
        (Rack, Rack(LINE)),
        (list[Rack], [Rack(None)]),
        (Annotated[int, Field(gt=0)], 5),
        (Annotated[datetime, Field()], datetime(2026, 5, 1, tzinfo=UTC)),
        (Annotated[Colour, Field()], Colour.ONE),
        (HttpUrl, HttpUrl("https://example.org/")),
        (Strict, Strict(at=datetime.now(UTC), ids={uuid4()}, by={uuid4(): Decimal("1.0")})),
        (Open, Open(anything={"a": [1, None]}, more=2)),  # type: ignore[call-arg]
        (Excluded, Excluded(kept=3)),
        (Camel, Camel(orderId=1)),  # type: ignore[call-arg]
        (ByName, ByName(order_id=1)),
        (NoAlias, NoAlias(order_id=1)),
        (ByAlias, ByAlias(orderId=1)),  # type: ignore[call-arg]
        (TwoAliases, TwoAliases(read_as=1, nested=Camel(orderId=2))),  # type: ignore[call-arg]
    ],
)
def test_models_may_be_anywhere_in_a_hint(hint: Any, value: Any) -> None:
    read = arrived(hint, value)
    assert read == value
    assert type(read) is type(value)
    signature = task_of(hint)
    stored = signature.result(value)
    assert signature._answer.read(stored or b"null") == value


@pytest.mark.parametrize(
    ("hint", "payload", "wanted"),
    [
        (Camel, b'{"v":{"orderId":1}}', Camel(orderId=1)),  # type: ignore[call-arg]
        (Camel, b'{"v":{"order_id":1}}', Camel(orderId=1)),  # type: ignore[call-arg]
        (Line, b'{"v":{"name":"a","price":1.5}}', LINE),
        (list[Line], b'[[{"name":"a","price":"1.5"}]]', [LINE]),
        (Pet, b'{"v":{"kind":"cat"}}', Cat()),
        (Lines, b'{"v":[{"name":"a","price":"1.5"}]}', Lines([LINE])),
    ],
)
def test_other_producers_write_plain_json(hint: Any, payload: bytes, wanted: Any) -> None:
    assert task_of(hint).arguments(payload, JSON) == ((), {"v": wanted})


def test_a_dict_may_stand_for_a_model() -> None:
    assert arrived(Line, {"name": "a", "price": Decimal("1.5")}) == LINE
    assert arrived(list[Line], [{"name": "a", "price": 1.5}]) == [LINE]


def test_a_payload_has_the_names_of_fields() -> None:
    two = TwoAliases(read_as=1, nested=Camel(orderId=2))  # type: ignore[call-arg]
    payload = task_of(TwoAliases).payload((two,), {})
    assert payload == b'{"v":{"order_id":1,"nested":{"order_id":2}}}'
    written = task_of(Line).payload((LINE,), {})
    assert written == b'{"v":{"name":"a","price":"1.50"}}'


def wrong_lines(count: int) -> list[dict[str, Any]]:
    return [{"name": "a", "price": "1"}, *[{"name": "a", "price": "0"}] * count]


@pytest.mark.parametrize(
    ("hint", "value", "says"),
    [
        (
            Order,
            {"lines": wrong_lines(1)},
            r"t: v\.lines\[1\]\.price: Input should be greater than 0$",
        ),
        (
            list[Order],
            [{"lines": [{}]}],
            r"t: v\[0\]\.lines\[0\]\.name: Field required\n  v\[0\]\.l",
        ),
        (
            Line,
            Line.model_construct(name="a", price=Decimal(0)),
            r"v\.price: Input should be great",
        ),
        (Annotated[int, Field(gt=0)], 0, "task t: v: Input should be greater than 0"),
        (Annotated[int, Field(gt=0)], "5", "task t: v: Input should be a valid integer"),
        (Camel, {"orderId": 1, "x": 2}, r"task t: v\.x: Extra inputs are not permitted"),
        (Pet, {"kind": "cow"}, "v: Input tag 'cow' found using 'kind' does not match"),
        (Shelf, {"lines": wrong_lines(1)}, r"t: v\.lines\[1\]\.price: Input should be greater tha"),
        (Line, 7, "task t: v: Input should be an object"),
        (
            Line,
            LINE.model_copy(update={"name": object()}),
            "v: the value cannot be written as JSON",
        ),
        (Open, Open(anything=float("nan")), r"v\.anything: a value of type float would arrive as"),
        (Measured, Measured(weight=float("nan")), "v: the value cannot be written as JSON"),
        (Open, Open(anything=b"x"), r"v\.anything: a value of type bytes would arrive as str"),
        (Open, Open(anything=LINE), r"v\.anything: a value of type Line would arrive as dict"),
        (Open, Open(more={1}), r"v\['more'\]: a value of type set would arrive as list"),  # type: ignore[call-arg]
        (Order, Rush(lines=[]), "v: a value of type Rush would arrive as Order"),
        (Any, LINE, "v: a value of type Line would arrive as dict"),
        (Crossed, Crossed(left=1, right=2), r"v\.left: this int would arrive as another value"),
        (Hidden, Hidden(card="12345678"), r"v\.card: this str would arrive as another value"),
        (Growing, Growing(name="a"), r"v\.name: this str would arrive as another value"),
        (SecretStr, SecretStr("x"), "v: this SecretStr would arrive as another value"),
        (Excluded, Excluded(kept=1, left_out=2), r"v\.left_out: this int would arrive as another"),
        (Parcel, Parcel(1, b"\xff"), "v: the value cannot be written as JSON"),
    ],
)
def test_what_does_not_fit_or_would_arrive_changed_is_refused(
    hint: Any, value: Any, says: str
) -> None:
    with pytest.raises(InvalidJob, match=says):
        arrived(hint, value)


def test_a_private_attribute_must_have_its_default() -> None:
    model = Excluded(kept=1)
    model._private = 5
    with pytest.raises(
        InvalidJob, match=r"v\['_private'\]: this int would arrive as another value"
    ):
        arrived(Excluded, model)


def test_many_problems_are_a_few_lines() -> None:
    with pytest.raises(InvalidJob) as caught:
        arrived(Order, {"lines": wrong_lines(2000), "x" * 5000: 1})
    lines = str(caught.value).split("\n")
    assert lines[0] == "task t: v.lines[1].price: Input should be greater than 0"
    assert lines[-1] == "  and 1997 more"
    assert len(lines) == 4


def test_hostile_keys_and_texts_are_cut() -> None:
    with pytest.raises(InvalidJob) as caught:
        task_of(Camel).arguments(b'{"v":{"' + b"\\u001bx" * 5000 + b'":1}}', JSON)
    assert len(str(caught.value)) < 1000
    assert "\x1b" not in str(caught.value)


def test_every_kind_of_parameter_may_be_a_model() -> None:
    def function(first: Line, *rest: Line, last: Line | None = None, **more: Line) -> None: ...

    signature = Signature("t", function)
    payload = signature.payload((LINE, LINE), {"last": LINE, "other": LINE})
    assert signature.arguments(payload, JSON) == ((LINE, LINE), {"last": LINE, "other": LINE})
    with pytest.raises(InvalidJob, match=r"task t: other\.price: Input should be greater than 0"):
        signature.payload((LINE,), {"other": {"name": "a", "price": 0}})
    with pytest.raises(InvalidJob, match=r"task t: rest\[0\]\.price: Field required"):
        signature.payload((LINE, {"name": "a"}), {})
    with pytest.raises(InvalidJob, match="task t: first: it is missing"):
        signature.arguments(b"{}", JSON)


def test_an_element_of_a_batch_task_is_named() -> None:
    with pytest.raises(InvalidJob, match=r"task t: v\[…\]\.price: Field required"):
        task_of(Line, batch=True).payload(({"name": "a"},), {})


def test_an_old_pydantic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pydantic, "VERSION", "2.9.2")
    with pytest.raises(UsageError, match=r"Pydantic 2\.9\.2 is too old .* install 2\.11 or later"):
        task_of(Line)


app = Holdfast("memory:")


@app.task
def price(ctx: Context, order: Order, copies: int = 1) -> Line:
    return Line(name=f"{len(order.lines)} lines", price=order.total * copies)


@app.task
async def refund(order: Order) -> Order | None:
    return order if order.lines else None


@app.task(batch=10)
def pack(lines: list[Line]) -> list[Parcel]:
    return [Parcel(weight=int(line.price)) for line in lines]


@app.task
def untyped(order: Order):  # type: ignore[no-untyped-def]  # noqa: ANN201
    return order.lines[0]


@app.task
def wrong(order: Order) -> Line:
    return order  # type: ignore[return-value]


def test_results_are_of_the_annotated_type() -> None:
    order = Order(lines=[LINE, LINE])
    with inline(app):
        assert price.enqueue(order, copies=2).result() == Line(name="2 lines", price=Decimal(6))
        assert refund.enqueue(order).result() == order
        assert refund.enqueue(Order(lines=[])).result() is None
        assert pack.enqueue(LINE).result() == Parcel(1)
        assert untyped.enqueue(order).result() == {"name": "a", "price": "1.50"}
        with pytest.raises(
            ResultMismatch, match=r"of task .*: name: Field required\n  price: Fiel"
        ):
            wrong.enqueue(order).result()


def imported(program: str) -> bool:
    line = [sys.executable, "-c", f"{program}\nimport sys\nprint('pydantic' in sys.modules)"]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout == "True\n"


def test_pydantic_is_not_imported_by_tasks_without_models() -> None:
    program = """
from holdfast import Holdfast
from holdfast.testing import inline
app = Holdfast("memory:")
@app.task
def send(to: str) -> int:
    return 1
with inline(app):
    send.enqueue("a").result()
"""
    assert not imported(program)
