"""Random histories of each engine beside the reference.

More of them:
HOLDFAST_EXAMPLES=5000 ./hf test tests/engines/test_machine.py -k sqlite -o faulthandler_timeout=0
A failure names its seed and the command that shows it again.
"""

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast.conformance.harness import Harness
from holdfast.conformance.random_histories import run_histories
from holdfast.engines.brokered import BrokeredEngine
from tests.engines import harnesses
from tests.engines.brokered.reused_brokers import ReusedBrokers
from tests.engines.pg_connections import ForgetfulConnections, ReusedConnections

STEPS = 50
EXAMPLES = os.environ.get("HOLDFAST_EXAMPLES")
# Shrinking a failure may take five minutes; a long run that was asked for, half a day.
pytestmark = pytest.mark.timeout(900 if EXAMPLES is None else 43_200)


def explore(
    name: str, make: Callable[[], Harness], examples: int, runner: asyncio.Runner | None = None
) -> None:
    given = os.environ.get("HOLDFAST_SEED")
    examples = int(EXAMPLES or examples)
    seed = random.randrange(2**32) if given is None else int(given)
    try:
        run_histories(make, examples=examples, steps=STEPS, seed=seed, runner=runner)
    except BaseException as error:
        test = f"tests/engines/test_machine.py::test_{name}"
        command = f"HOLDFAST_SEED={seed} HOLDFAST_EXAMPLES={examples} ./hf test {test}"
        error.add_note(f"again: {command}")
        raise


def test_memory() -> None:
    """The reference beside itself: the machine, not the engine, is what could fail here."""
    explore("memory", harnesses.memory, 8)


def test_sqlite(memory_path: Path) -> None:
    explore("sqlite", lambda: harnesses.sqlite(memory_path), 12)


def test_coalesced_sqlite(memory_path: Path) -> None:
    make = harnesses.sqlite
    explore("coalesced_sqlite", lambda: make(memory_path, harnesses.coalesced), 6)


def test_postgres(shared_pg_dsn: str) -> None:
    with asyncio.Runner() as runner, ReusedConnections() as reused:
        make = partial(harnesses.postgres, shared_pg_dsn, connections=1, reused=reused)
        explore("postgres", make, 8, runner)


@contextmanager
def brokered(url: str, runner: asyncio.Runner) -> Iterator[harnesses.Wrap]:
    """Wraps a ledger in an engine with a real broker."""
    reused = ReusedBrokers(url, uuid4().hex[:30])
    try:
        yield lambda engine: BrokeredEngine(engine, reused.broker())
    finally:
        runner.run(reused.close())


def test_brokered_sqlite(memory_path: Path, amqp_url: str) -> None:
    with asyncio.Runner() as runner, brokered(amqp_url, runner) as wrap:
        make = partial(harnesses.sqlite, memory_path, wrap)
        explore("brokered_sqlite", make, 5, runner)


def test_brokered_pooled_postgres(shared_pg_dsn: str, amqp_url: str) -> None:
    with (
        asyncio.Runner() as runner,
        brokered(amqp_url, runner) as wrap,
        ForgetfulConnections() as reused,
    ):
        make = partial(harnesses.postgres, shared_pg_dsn, wrap, connections=1, reused=reused)
        explore("brokered_pooled_postgres", make, 3, runner)
