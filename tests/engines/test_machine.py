"""Random histories of each engine beside the reference.

More of them: HOLDFAST_EXAMPLES=5000 ./hf test tests/engines/test_machine.py -k sqlite
A failure names its seed and the command that shows it again.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.testing.harness import Harness
from holdfast.testing.machine import run_histories
from tests.engines import harnesses

STEPS = 50
EXAMPLES = os.environ.get("HOLDFAST_EXAMPLES")
# Shrinking a failure may take five minutes; a long run that was asked for, half a day.
pytestmark = pytest.mark.timeout(900 if EXAMPLES is None else 43_200)


def explore(name: str, make: Callable[[], Harness], examples: int) -> None:
    given = os.environ.get("HOLDFAST_SEED")
    examples = int(EXAMPLES or examples)
    seed = random.randrange(2**32) if given is None else int(given)
    try:
        run_histories(make, examples=examples, steps=STEPS, seed=seed)
    except BaseException as error:
        test = f"tests/engines/test_machine.py::test_{name}"
        command = f"HOLDFAST_SEED={seed} HOLDFAST_EXAMPLES={examples} ./hf test {test}"
        error.add_note(f"again: {command}")
        raise


def test_memory() -> None:
    """The reference beside itself: the machine, not the engine, is what could fail here."""
    explore("memory", harnesses.memory, 50)


def test_sqlite(tmp_path: Path) -> None:
    explore("sqlite", lambda: harnesses.sqlite(tmp_path), 70)


def test_coalesced_sqlite(tmp_path: Path) -> None:
    make = harnesses.sqlite
    explore("coalesced_sqlite", lambda: make(tmp_path, harnesses.coalesced), 35)


def test_postgres(shared_pg_dsn: str) -> None:
    make = harnesses.postgres
    explore("postgres", lambda: make(shared_pg_dsn, connections=1), 60)
