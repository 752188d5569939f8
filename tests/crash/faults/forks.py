"""Scenes that fork, each run in its own process: `python -m tests.crash.faults.forks SCENE PATH`.

Each exits with status 0, or raises an error that says what is wrong.
"""

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import apsw

from holdfast.conformance.faulty_disk import FaultyDisk
from holdfast.core.model import LeaseRequest, NewJob
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.engines.sqlite.transaction import Transaction
from holdfast.errors import EngineClosed


def fork_with_an_open_engine(path: Path) -> None:
    """The child is refused, and nothing that it does or leaves undone hurts the parent."""
    asyncio.run(_parent(path))


async def _parent(path: Path) -> None:
    engine = SQLiteEngine(path)
    await engine.open()
    await engine.enqueue([NewJob(id="before", task="noop")])
    status = in_child(lambda: asyncio.run(_child(engine)))
    assert status == 0, f"the child ended with status {status}"
    await engine.enqueue([NewJob(id="after", task="noop")])
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=10))
    assert [lease.id for lease in leases] == ["before", "after"]
    settlements = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
    assert await engine.settle(settlements) == [Outcome.SETTLED] * 2
    await engine.close()


async def _child(engine: SQLiteEngine) -> None:
    attempts: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        lambda: engine.enqueue([NewJob(id="child", task="noop")]),
        lambda: engine.lease(LeaseRequest(queues=("default",))),
        lambda: engine.get("before"),
        engine.queues,
        lambda: engine.load("settings", limit=1),
        engine.open,
        engine.close,
    ]
    for attempt in attempts:
        try:
            answer = await attempt()
        except EngineClosed:
            continue
        raise AssertionError(f"the child was answered: {answer}")


def kill_a_parent_in_a_transaction(path: Path) -> None:
    """A child that was forked off in it, and lives on, does not keep the lock from the others."""
    told, tell = os.pipe()

    def fork_and_die(_: Transaction) -> None:
        child = os.fork()
        if child == 0:
            signal.pause()
        os.write(tell, f"{child}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)

    async def hold() -> None:
        engine = SQLiteEngine(path)
        await engine.open()
        await engine._write(fork_and_die)

    assert in_child(lambda: asyncio.run(hold())) == signal.SIGKILL
    orphan = int(os.read(told, 100))
    try:
        asyncio.run(_use(path))
    finally:
        os.kill(orphan, signal.SIGKILL)


def kill_while_opening(path: Path) -> None:
    """Killed at every call that changes the new file, one after another; each time the next open
    brings the migration to its end."""
    for nth in range(1, 1000):
        target = path / f"{nth}.db"
        status = in_child(lambda: _open_until_killed(target, nth))  # noqa: B023
        found = in_child(lambda: asyncio.run(_use(target)))  # noqa: B023
        assert found == 0, f"killed at call {nth}: status {found}"
        if status == 0:
            print(f"killed at {nth - 1} calls")
            assert nth > 10
            return
        assert status == signal.SIGKILL, f"call {nth}: status {status}"
    raise AssertionError("opening never came to its end")


def _open_until_killed(path: Path, nth: int) -> None:
    disk = FaultyDisk("killer", Random(0))
    disk.faults.cut_power(nth, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    asyncio.run(_open(path, disk.name))


async def _open(path: Path, vfs: str) -> None:
    # Not closed: that is no part of a migration.
    await SQLiteEngine(path, vfs=vfs).open()


async def _use(path: Path) -> None:
    engine = SQLiteEngine(path)
    await engine.open()
    await engine.enqueue([NewJob(id="one", task="noop")])
    leases = await engine.lease(LeaseRequest(queues=("default",)))
    assert await engine.settle([Settlement(lease=leases[0], verdict=Complete())]) == [
        Outcome.SETTLED
    ]
    await engine.close()
    connection = apsw.Connection(str(path))
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


def in_child(work: Callable[[], None]) -> int:
    """Its exit status, or the number of the signal that ended it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - the child must never go on as its parent
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


SCENES = {
    scene.__name__: scene
    for scene in (fork_with_an_open_engine, kill_a_parent_in_a_transaction, kill_while_opening)
}

if __name__ == "__main__":
    SCENES[sys.argv[1]](Path(sys.argv[2]))
