"""Orders to workers from the command line, and how many commands a worker runs."""

import socket

import pytest

from holdfast.app.application import Holdfast
from holdfast.cli.workers import WorkerFlags
from holdfast.config import Settings
from holdfast.core.model import Queue
from holdfast.core.workers import WorkerOrder, WorkerRecord
from holdfast.ops.workers import WORKERS
from holdfast.worker.options import WorkerOptions
from holdfast.worker.supervisor.main import make_child_pool
from tests.cli import seed
from tests.cli.program import Cli

HERE = socket.gethostname()


def register(name: str, host: str) -> None:
    record = WorkerRecord(name=name, id=f"id-of-{name}", host=host, pid=1, started_at=0)

    async def save(app: Holdfast) -> None:
        await WORKERS.save(app.engine, name, record, 0)

    seed.with_app(save)


def orders() -> dict[str, WorkerOrder]:
    return seed.with_app(lambda app: app.workers.orders())


def endings() -> dict[str, tuple[str, int | None]]:
    return {name: (order.ending, order.grace_ms) for name, order in orders().items()}


@pytest.mark.parametrize(
    ("words", "ending", "says"),
    [
        (["stop"], ("stop", None), "stopping; running jobs may finish"),
        (["stop", "--grace", "90s"], ("stop", 90_000), "stopping; running jobs may finish"),
        (["stop", "--now"], ("stop", 0), "stopping at once"),
        (["drain"], ("drain", None), "draining"),
    ],
)
def test_without_names_the_workers_of_this_host_end(
    cli: Cli, words: list[str], ending: tuple[str, int | None], says: str
) -> None:
    register("a", HERE)
    register("b", HERE)
    register("far", "elsewhere")
    ran = cli("worker", *words)
    assert (ran.code, ran.out) == (0, f"a: {says}\nb: {says}\n")
    assert ran.err == "1 worker on other hosts: give their names, or --all\n"
    assert endings() == {"a": ending, "b": ending}


def test_names_and_all_reach_every_host(cli: Cli) -> None:
    register("a", HERE)
    register("far", "elsewhere")
    assert cli("worker", "stop", "far").out == "far: stopping; running jobs may finish\n"
    assert set(orders()) == {"far"}
    assert cli("worker", "stop", "--all", "--json").json == {"workers": ["a", "far"], "missing": []}


def test_a_host_without_workers(cli: Cli) -> None:
    seed.begin()
    ran = cli("worker", "stop")
    assert (ran.code, ran.out, ran.err) == (0, "", "no worker runs on this host\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["stop", "--now", "--grace", "1s"], "--now does not wait for running jobs"),
        (["stop", "--grace", "soon"], '--grace "soon": expected a duration such as 30s'),
        (["stop", "--grace", "2d"], "grace 2d is out of range: expected at most 1d"),
        (["stop", "a", "--all"], "give the names of workers, or --all"),
        (["cordon"], "give the names of workers, or --all"),
    ],
)
def test_orders_that_are_refused(cli: Cli, words: list[str], says: str) -> None:
    register("a", HERE)
    ran = cli("worker", *words)
    assert ran.code == 2
    assert says in ran.err
    assert orders() == {}


@pytest.mark.parametrize(
    ("flags", "stored", "slots"),
    [
        (WorkerFlags(), {}, (1, 16)),
        (WorkerFlags(concurrency=3), {}, (3, 3)),
        (WorkerFlags(), {"worker-concurrency": "5"}, (5, 5)),
    ],
)
async def test_a_worker_runs_one_command_at_a_time(
    flags: WorkerFlags, stored: dict[str, str], slots: tuple[int, int]
) -> None:
    """So `worker start --count N` runs at most N commands at a time."""
    options = flags.options("sqlite:///a.db", Settings(stored, {}), "m:app")
    assert pool_slots(options) == slots


def pool_slots(options: WorkerOptions) -> tuple[int, int]:
    """How many commands the worker runs at a time, and how many tasks in each process."""
    pool = make_child_pool(options, "id", Listener(), lambda name: Queue(name=name))  # type: ignore[arg-type]
    return pool.capacity_of("command"), pool.capacity_of("python") // options.processes


class Listener:
    """A pool that is not started calls nothing."""
