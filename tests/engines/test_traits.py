"""What each engine can do, pinned: a gap is a decision, made here first."""

import inspect
from pathlib import Path

import msgspec
import pytest

from holdfast.core import limits
from holdfast.engines.base import Engine, Traits
from tests.engines import harnesses

# yes and no, in the order of COLUMNS.
COLUMNS = """
    durable shared inspect priority keys renew fencing transactional groups dependencies rates
    ordered
"""
MATRIX = """
    memory    no  no  yes yes yes yes yes no  yes yes yes yes
    sqlite    yes yes yes yes yes yes yes yes yes yes yes yes
    postgres  yes yes yes yes yes yes yes yes yes yes yes yes
"""
ROWS = [line.split() for line in MATRIX.strip().splitlines()]
BOUNDS = {
    "delay_ms_max": limits.DELAY_MS_MAX,
    "batch_max": limits.BATCH_MAX,
    "payload_max": limits.PAYLOAD_MAX,
}


def make(name: str, wrap: harnesses.Wrap = harnesses.plain) -> Engine:
    match name:
        case "memory":
            return harnesses.memory(wrap).engine
        case "sqlite":
            return harnesses.sqlite(Path("/proc/nowhere"), wrap).engine
        case _:
            return harnesses.postgres("postgresql://nowhere/db", wrap).engine


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_the_matrix(row: list[str]) -> None:
    name, *answers = row
    expected = {
        column: answer == "yes" for column, answer in zip(COLUMNS.split(), answers, strict=True)
    }
    assert msgspec.structs.asdict(make(name).traits) == {"name": name} | expected | BOUNDS


def test_every_trait_has_its_column() -> None:
    assert set(Traits.__struct_fields__) == {"name", *COLUMNS.split(), *BOUNDS}


@pytest.mark.parametrize("wrap", [harnesses.observed, harnesses.coalesced])
@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_composition_can_do_what_its_engine_can(row: list[str], wrap: harnesses.Wrap) -> None:
    assert make(row[0], wrap).traits == make(row[0]).traits


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_who_says_transactional_has_the_call_for_it(row: list[str]) -> None:
    engine = make(row[0])
    assert hasattr(engine, "within") == engine.traits.transactional


@pytest.mark.parametrize("wrap", [harnesses.plain, harnesses.observed, harnesses.coalesced])
@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_every_verb_takes_what_the_protocol_says(row: list[str], wrap: harnesses.Wrap) -> None:
    engine = make(row[0], wrap)
    for name, verb in inspect.getmembers(Engine, inspect.isfunction):
        if not name.startswith("_"):
            expected = list(inspect.signature(verb).parameters)[1:]
            assert list(inspect.signature(getattr(engine, name)).parameters) == expected
