"""Random and extreme records of every kind, fed to everything that reads records: the services of
upkeep and of a server, the doctor, and every GET operation. New kinds, services and operations are
included by themselves."""

import asyncio
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast

import msgspec
import msgspec.inspect as mi
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.alerts.alerter import Alerter
from holdfast.alerts.facts import FactReader
from holdfast.alerts.notify import Notifier
from holdfast.core.limits import Limit
from holdfast.core.model import JobFilter, NewJob, Record
from holdfast.engines.base import Engine, Saved
from holdfast.ops import breakers, queues
from holdfast.ops.doctor import check_store
from holdfast.ops.records import (
    RecordKind,
    kind_of,
    kinds,
    scan,
)
from holdfast.ops.schedules import Schedules
from holdfast.ops.settings import read_settings
from holdfast.ops.sqs import SQS_QUEUE_KIND
from holdfast.ops.ticks import Schedule
from holdfast.ops.unreadable import find_unreadable, remove_unreadable
from holdfast.ops.workers import Workers
from holdfast.process import wall_ms
from holdfast.server.application import OPERATIONS
from holdfast.telemetry.bookkeeper import Bookkeeper
from holdfast.telemetry.snapshots import Roller
from holdfast.upkeep import Upkeep
from tests.server.direct_server import direct_server
from tests.server.sample_namespace import example_request, fill_namespace, send_example

TICK_MS = 60_000
INTS = [
    0,
    1,
    -1,
    2,
    100,
    10**12,
    10**18,
    2**31,
    2**53,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63),
    10**30,
]
FLOATS = [0.0, 1.0, -1.0, 0.5, 1e18, 1e300, -1e300]
TEXTS = ["", "x", "sample", "a/b", "task:t", "default", "\x1b[2J", "ü\n", "%s{}", "x" * 300]
JUNK: st.SearchStrategy[Any] = st.sampled_from([None, True, "x", [], {}, *INTS, *FLOATS])
GETS = [each for each in OPERATIONS if each.method == "GET"]


def import_everything() -> None:
    """Every module, so that every kind is known."""
    for found in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if ".django" not in found.name and not found.name.endswith("__main__"):
            importlib.import_module(found.name)


@cache
def names() -> list[str]:
    """Every kind of the package. Tests of the typed layer add one of their own."""
    import_everything()
    return [name for name in kinds() if name != "note"]


SIMPLE: dict[type[mi.Type], st.SearchStrategy[Any]] = {
    mi.FloatType: st.sampled_from(FLOATS),
    mi.StrType: st.sampled_from(TEXTS),
    mi.BoolType: st.booleans(),
    mi.NoneType: st.none(),
    mi.BytesType: st.sampled_from([b"", b"{", b'{"a":1}', b"\xff" * 100]),
}


def of_type(info: mi.Type) -> st.SearchStrategy[Any]:
    """Values that a type describes, mostly at its bounds and beyond them."""
    match info:
        case mi.Metadata(type=inner):
            return of_type(inner)
        case mi.IntType(ge=low, le=high):
            ends = [each for each in (low, high) if each is not None]
            near = [each + step for each in ends for step in (-1, 1)]
            return st.sampled_from([*ends * 4, *near, *INTS])
        case mi.EnumType(cls=cls):
            return st.sampled_from([each.value for each in cls])
        case mi.LiteralType(values=values):
            return st.sampled_from(list(values))
        case mi.UnionType(types=types):
            return st.one_of([of_type(each) for each in types])
        case mi.ListType(item_type=item) | mi.VarTupleType(item_type=item):
            return st.lists(of_type(item), max_size=3)
        case mi.TupleType(item_types=items):
            return st.tuples(*map(of_type, items)).map(list)
        case mi.DictType(key_type=key, value_type=value):
            return st.dictionaries(of_type(key), of_type(value), max_size=3)
        case mi.StructType():
            return of_struct(info)
        case _:
            return SIMPLE.get(type(info), JUNK)


def of_struct(info: mi.StructType) -> st.SearchStrategy[Any]:
    if info.array_like:
        return st.tuples(*(of_type(each.type) for each in info.fields)).map(list)
    parts = {each.encode_name: of_type(each.type) for each in info.fields}
    must = {each.encode_name for each in info.fields if each.required}
    return st.fixed_dictionaries(
        {name: part for name, part in parts.items() if name in must},
        optional={name: part for name, part in parts.items() if name not in must},
    )


def mutated(value: Any, paths: list[int], junk: list[Any]) -> Any:
    """A valid value with some of its parts replaced."""
    value = msgspec.json.decode(msgspec.json.encode(value))
    for at, new in zip(paths, junk, strict=True):
        places = list(_places(value))
        if places:
            place, name = places[at % len(places)]
            place[name] = new
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    parts: Any = ()
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
    for name, part in list(parts):
        yield value, name
        yield from _places(part)


def packed(kind: RecordKind[Any], value: Any) -> bytes:
    """The stored form of any value, in the notation of the kind."""
    try:
        return kind.encode_value(value)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return msgspec.json.encode(str(value))


@cache
def samples() -> dict[str, list[Record]]:
    return asyncio.run(sample_records())


async def sample_records() -> dict[str, list[Record]]:
    """Valid records by kind, of a namespace in which something happened."""
    async with direct_server() as at:
        engine = at.engine()
        await at.token("admin")
        await fill_namespace(engine, "sample")
        await Roller(engine, wall_ms).once()
        await Bookkeeper(engine, wall_ms).once()
        await at.ask("PUT", "/v1/config/lease", {"value": "20s"})
        return {name: [each async for each in scan(engine, name)] for name in names()}


@pytest.fixture(autouse=True, scope="module")
def prepared() -> None:
    """Before any example: a server draws random numbers of its own."""
    samples()


@st.composite
def hostile(draw: st.DrawFn, name: str) -> Record:
    """A record of one kind: random bytes, values of its type, or a valid one with a few changes."""
    valid = samples()[name]
    way = draw(st.sampled_from(["bytes", "type", *(["change"] * 3 if valid else [])]))
    if way == "change":
        record = draw(st.sampled_from(valid))
        kind = cast("RecordKind[Any]", kind_of(record))
        try:
            value = msgspec.to_builtins(kind.decode_value(record.value or b""))
        except (msgspec.MsgspecError, ValueError):
            value = {}
        count = draw(st.integers(1, 2))
        paths = draw(st.lists(st.integers(0, 500), min_size=count, max_size=count))
        value = mutated(value, paths, draw(st.lists(JUNK, min_size=count, max_size=count)))
        return Record(kind=name, key=record.key, value=packed(kind, value))
    key = draw(st.sampled_from([text for text in TEXTS if text and len(text) < 200]))
    kind = kind_of(Record(kind=name, key=key, value=b"")) or reader(name)
    if way == "bytes":
        return Record(kind=name, key=key, value=draw(st.binary(max_size=50)))
    value = draw(of_type(mi.type_info(kind.type)))
    for field in ("name", "id", "target"):
        if isinstance(value, dict) and isinstance(value.get(field), str) and value[field]:
            key = value[field][:200]
    if name == SQS_QUEUE_KIND and isinstance(value, dict) and "region" in value:
        key = f"{value['region']}/{value.get('name')}"[:200] or key
    return Record(kind=name, key=key, value=packed(kind, value))


def reader(name: str) -> RecordKind[Any]:
    """A kind whose records all have keys of their own."""
    found = [kind_of(Record(kind=name, key=key, value=b"")) for key in ("in", "out", "(ended)")]
    return next(kind for kind in found if kind is not None)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_value_that_can_be_read_can_be_stored_again(data: st.DataObject) -> None:
    record = data.draw(hostile(data.draw(st.sampled_from(names()))))
    kind = kind_of(record)
    if kind is None or kind.fault(record):
        return
    again = kind.record(record.key, kind.require(record))
    assert kind.require(again) == kind.require(record)


# An example takes a while: no time is spent on a smaller one.
@settings(max_examples=15, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_record_stops_a_reader(data: st.DataObject) -> None:
    asyncio.run(check_readers([data.draw(hostile(name)) for name in names()]))


async def check_readers(records: list[Record]) -> None:
    async with direct_server() as at:
        engine = at.engine()
        sample = await fill_namespace(engine, "sample")
        await Schedules(engine, lambda: wall_ms() - TICK_MS).add(
            Schedule(name="neighbour", job=NewJob(id="-", task="ticked"), every_ms=TICK_MS)
        )
        for record in records:
            await put(engine, record)
        assert at.application.sqs is not None
        sqs_services = at.application.sqs.services("default", at.apps["default"])
        for service in [*services(engine), *(each.once for each in sqs_services)]:
            await service()
        assert (await engine.find(JobFilter(task="ticked"), limit=1)).jobs, "the neighbour ticks"
        await breakers.read_breakers(engine)
        await queues.Distributions(engine).all()
        await queues.set_task_limits(engine, "default", [Limit(name="x", task="t", concurrency=1)])
        await Workers(engine).orders()
        await read_settings(engine)
        await check_store(engine, deep=True)
        for operation in GETS:
            reply = await send_example(at, operation, example_request(operation, sample))
            assert reply.status < 500, (operation.path, reply.body)
        for action in ("ListQueues", "GetQueueAttributes", "ListDeadLetterSourceQueues"):
            body = {"QueueUrl": "sample", "AttributeNames": ["All"]}
            answer = await at.ask("POST", "/", body, x_amz_target=f"AmazonSQS.{action}")
            assert answer.status < 500, (action, answer.body)
        for kind, key, _ in await find_unreadable(engine, deep=True):
            await remove_unreadable(engine, kind, key)
        assert await find_unreadable(engine, deep=True) == []


async def put(engine: Engine, record: Record) -> None:
    """Store a record as it is, whatever the typed layer thinks of it."""
    found = [each async for each in scan(engine, record.kind) if each.key == record.key]
    saved = msgspec.structs.replace(record, version=found[0].version if found else 0)
    assert await engine.save([saved]) == [Saved.SAVED]


def services(engine: Engine) -> list[Callable[[], Any]]:
    async def ignore(_: object) -> None:
        pass

    alerter = Alerter(engine, FactReader(engine, engine), Notifier(engine, "default", ignore))
    more = (Bookkeeper(engine, wall_ms), Roller(engine, wall_ms), alerter)
    return [service.once for service in Upkeep(engine, more=more).services]


@pytest.mark.parametrize("module", ["upkeep", "admin"])
def test_doctor_and_record_remove_know_every_kind(module: str) -> None:
    """Also in a process of the command line, which imports little."""
    code = (
        f"import holdfast.cli.{module}; from holdfast.ops import records;"
        "print(*records.kinds(logs=False))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    names()
    assert set(ran.stdout.split()) == set(kinds(logs=False)) - {"note"}
