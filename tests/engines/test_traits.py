"""The traits of each engine, pinned: a missing trait is a decision."""

import inspect
from pathlib import Path

import msgspec
import pytest

from holdfast.conformance.contract.cases import missing
from holdfast.core import bounds
from holdfast.engines.base import Engine, Traits
from holdfast.engines.extras import Transactional, extra
from holdfast.engines.sqs.engine import SqsEngine
from holdfast.engines.wire import About
from tests.engines import harnesses

# y and n, in the order of COLUMNS.
COLUMNS = """
    durable shared inspect priority keys renew fencing transactional groups dependencies rates
    ordered keep_order limits fairness refunds results notes follow_ups records combinations
    exact_counts dead_leases queue_expiry key_hold parent_filter overdue exact_times prompt_settings
    fifo_groups
"""
MATRIX = """
memory n n y y y y y n y y y y y y y y y y y y y y y y y y y y y n
sqlite y y y y y y y y y y y y y y y y y y y y y y y y y y y y y n
postgres y y y y y y y y y y y y y y y y y y y y y y y y y y y y y n
"""
SQS = "y y n n n y n n n n n n n n n n n n y n y n y n n n n n n y"
ROWS = [line.split() for line in MATRIX.strip().splitlines()]
BOUNDS = {
    "delay_ms_max": bounds.DELAY_MS_MAX,
    "batch_max": bounds.BATCH_MAX,
    "payload_max": bounds.PAYLOAD_MAX,
    "atomic_max": bounds.BATCH_MAX,
    "lease_ms_max": bounds.LEASE_MS_MAX,
    "retry_ms_max": bounds.DELAY_MS_MAX,
    "queue_name_max": bounds.QUEUE_NAME_MAX,
}
SQS_BOUNDS = {
    "delay_ms_max": 15 * bounds.MINUTE_MS,
    "batch_max": bounds.BATCH_MAX,
    "payload_max": 1024 * 1024,
    "atomic_max": 0,
    "lease_ms_max": 12 * bounds.HOUR_MS,
    "retry_ms_max": 12 * bounds.HOUR_MS,
    "queue_name_max": 80 - len("shop-") - len("-dlq"),
}


def make(name: str, wrap: harnesses.Wrap = harnesses.plain) -> Engine:
    match name:
        case "memory":
            return harnesses.memory(wrap).engine
        case "sqlite":
            return harnesses.sqlite(Path("/nowhere/work.db"), wrap).engine
        case _:
            return harnesses.postgres("postgresql://nowhere/db", wrap).engine


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_the_matrix(row: list[str]) -> None:
    name, *answers = row
    expected = {
        column: answer == "y" for column, answer in zip(COLUMNS.split(), answers, strict=True)
    }
    assert msgspec.structs.asdict(make(name).traits) == {"name": name} | expected | BOUNDS


def test_the_row_of_sqs() -> None:
    traits = SqsEngine("eu-west-1", "shop-").traits
    expected = dict(zip(COLUMNS.split(), (each == "y" for each in SQS.split()), strict=True))
    assert msgspec.structs.asdict(traits) == {"name": "sqs"} | expected | SQS_BOUNDS
    with_control = SqsEngine("eu-west-1", "shop-", control=make("memory")).traits
    assert with_control == msgspec.structs.replace(traits, records=True)


def test_every_trait_has_its_column() -> None:
    assert set(Traits.__struct_fields__) == {"name", *COLUMNS.split(), *BOUNDS}


@pytest.mark.parametrize("wrap", [harnesses.observed, harnesses.coalesced, harnesses.brokered])
@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_composition_can_do_what_its_engine_can(row: list[str], wrap: harnesses.Wrap) -> None:
    assert make(row[0], wrap).traits == make(row[0]).traits


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_transactional_engine_has_the_extra_for_it(row: list[str]) -> None:
    engine = make(row[0])
    assert (extra(engine, Transactional) is not None) == engine.traits.transactional


def test_traits_of_an_older_server_can_be_read() -> None:
    """It does not know the newer traits, and has what they stand for, except what it would
    silently ignore."""
    about = {"version": "0.1", "now": 5}
    about["traits"] = {"name": "sqlite", "durable": True, "shared": True, "rates": True}
    traits = msgspec.msgpack.decode(msgspec.msgpack.encode(about), type=About).traits
    ignored = {"dead_leases", "queue_expiry", "key_hold", "parent_filter"}
    assert missing(traits) == {"groups", "dependencies"} | ignored


@pytest.mark.parametrize(
    "wrap", [harnesses.plain, harnesses.observed, harnesses.coalesced, harnesses.brokered]
)
@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_every_verb_takes_what_the_protocol_says(row: list[str], wrap: harnesses.Wrap) -> None:
    engine = make(row[0], wrap)
    for name, verb in inspect.getmembers(Engine, inspect.isfunction):
        if not name.startswith("_"):
            expected = list(inspect.signature(verb).parameters)[1:]
            assert list(inspect.signature(getattr(engine, name)).parameters) == expected
