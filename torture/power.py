"""Simulate power cuts under a SQLite engine on a disk with a volatile cache.

After each cut the file must open, pass an integrity check and contain every acknowledged write.
Most rounds continue with the file of the previous round; the others start with an empty one.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Literal

import apsw

from holdfast.conformance.faulty_disk import Call, FaultyDisk
from holdfast.core.model import LeaseRequest, NewJob
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.base import Engine
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.errors import EngineError
from holdfast.testing.clock import ManualClock
from torture import results
from torture.client_model import ClientModel

Durability = Literal["full", "relaxed"]
FILE = "jobs.db"


@dataclass(slots=True)
class PowerFindings:
    """Counts of a run. `losses` has the cuts that lost an acknowledged write, `faults` the details,
    `damages` the failed integrity checks."""

    cuts: int = 0
    answered: int = 0
    cuts_while_opening: int = 0
    cuts_in_checkpoints: int = 0
    losses: list[int] = field(default_factory=list)
    damages: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def outcome(self) -> dict[str, Any]:
        """Return the results as docs/torture.md lists them."""
        return {
            "cuts": self.cuts,
            "in_checkpoints": self.cuts_in_checkpoints,
            "while_opening": self.cuts_while_opening,
            "answered_calls": self.answered,
            "cuts_with_losses": len(set(self.losses)),
            "damaged_files": len(self.damages),
        }

    def __str__(self) -> str:
        return (
            f"{self.cuts} power cuts ({self.cuts_while_opening} while opening, "
            f"{self.cuts_in_checkpoints} in checkpoints), {self.answered} answered calls: "
            f"{len(self.losses)} cuts lost data, {len(self.damages)} damaged the file"
        )


async def cut_many(
    cuts: int,
    *,
    seed: int,
    durability: Durability,
    is_enough: Callable[[PowerFindings], bool] | None = None,
) -> PowerFindings:
    """Run a number of power cuts, or fewer if these are enough."""
    findings = PowerFindings()
    # The simulated disk decides what survives, so the real files may be in memory.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="holdfast-power-", dir=memory) as name:
        cutter = _Cutter(Path(name), findings, durability)
        for number in range(cuts):
            rng = Random(f"{seed}/{number}")
            if rng.random() < 0.3:
                cutter.start_empty()
            await cutter.cut(number, rng)
            if is_enough is not None and is_enough(findings):
                break
    return findings


class _Cutter:
    """The file, the clients and the clock that go from one round to the next."""

    def __init__(self, directory: Path, findings: PowerFindings, durability: Durability) -> None:
        self._root = directory
        self._findings = findings
        self._durability = durability
        self.start_empty()

    def start_empty(self) -> None:
        self._home = Path(tempfile.mkdtemp(dir=self._root))
        self._clock = ManualClock()
        self._clients: list[ClientModel] = []

    async def cut(self, number: int, rng: Random) -> None:
        if not self._clients:
            # With a single client, a seed repeats the round exactly.
            count = rng.choice((1, 1, 3))
            self._clients = [ClientModel(f"q{n}", Random(rng.random())) for n in range(count)]
        image = await self._work_until_cut(number, rng)
        before, self._home = self._home, Path(tempfile.mkdtemp(dir=self._root))
        shutil.rmtree(before)
        for name, content in image.items():
            (self._home / name).write_bytes(content)
        self._clock.reboot()
        self._findings.cuts += 1
        await self._check(number)

    async def _work_until_cut(self, number: int, rng: Random) -> dict[str, bytes]:
        disk = FaultyDisk(f"power-{id(self)}-{number}", rng)
        images: list[dict[str, bytes]] = []
        is_open = False

        def at_cut(call: Call, path: str) -> None:
            images.append(disk.image(rng))
            self._findings.cuts_while_opening += not is_open
            self._findings.cuts_in_checkpoints += is_open and path.endswith(FILE)

        if rng.random() < 0.6:
            disk.faults.cut_power(rng.randrange(1, rng.choice((60, 900))), at_cut)
        else:
            # Once created, the database file is written only by checkpoints.
            disk.faults.cut_power(rng.randrange(1, 60), at_cut, ending=FILE)
        while not images:
            engine = self._engine(disk.name)
            # Engines are closed often, because closing causes a checkpoint.
            steps = rng.choice((20, 200))
            try:
                await engine.open()
                is_open = True
            except EngineError as error:
                errors: list[EngineError | None] = [error]
            else:
                errors = await asyncio.gather(
                    *(self._work(client, engine, steps) for client in self._clients)
                )
            if not images:
                self._findings.faults += [f"before cut {number}: {e}" for e in errors if e]
            await engine.close()
        return images[0]

    async def _work(self, client: ClientModel, engine: Engine, steps: int) -> EngineError | None:
        """Make calls until one raises; return that error."""
        answered = client.answered
        try:
            await client.begin(engine)
            for _ in range(steps):
                await client.step(engine)
                self._clock.advance(1)
        except EngineError as error:
            return error
        finally:
            self._findings.answered += client.answered - answered
        return None

    async def _check(self, number: int) -> None:
        engine = self._engine(None)
        try:
            await engine.open()
            for client in self._clients:
                await client.check(engine, may_have_happened=True)
                client.reboot()
                if client.faults:
                    self._findings.losses.append(number)
                    self._findings.faults += client.faults
                    client.faults.clear()
            await _use(engine, number)
        except EngineError as error:
            self._findings.damages.append(f"cut {number}: {error}")
        finally:
            await engine.close()
        for text in _integrity_errors(self._home / FILE):
            self._findings.damages.append(f"cut {number}: {text}")

    def _engine(self, vfs: str | None) -> SQLiteEngine:
        return SQLiteEngine(
            self._home / FILE, durability=self._durability, clock=self._clock, vfs=vfs
        )


async def _use(engine: Engine, number: int) -> None:
    """Check that the opened file can run a job."""
    id_ = f"probe-{number}"
    await engine.enqueue([NewJob(id=id_, task="noop")])
    leases = await engine.lease(LeaseRequest(ids=(id_,)))
    assert [lease.id for lease in leases] == [id_]
    outcomes = await engine.settle([Settlement(lease=leases[0], verdict=Complete())])
    assert outcomes == [Outcome.SETTLED]


def _integrity_errors(path: Path) -> list[str]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
    finally:
        connection.close()
    return [] if found == ["ok"] else found


def main(argv: list[str]) -> int:
    """`./hf torture power`: return 1 if a write was lost or a file damaged."""
    parser = argparse.ArgumentParser(prog="hf torture power", description=__doc__)
    parser.add_argument(
        "--cuts", type=int, default=1000, metavar="N", help="number of power cuts [default: 1000]"
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        default=SystemRandom().randrange(1_000_000),
        help="seed of calls and cuts [default: random]",
    )
    parser.add_argument(
        "--durability",
        choices=("full", "relaxed"),
        default="full",
        help="durability of the engine [default: full]",
    )
    parser.add_argument("--record", action="store_true", help="add the results to docs/torture.md")
    given = parser.parse_args(argv)
    print(f"seed {given.seed}", flush=True)
    started = time.monotonic()
    findings = asyncio.run(cut_many(given.cuts, seed=given.seed, durability=given.durability))
    seconds = time.monotonic() - started
    print(f"{findings} in {seconds:.0f} s")
    if given.record:
        outcome = findings.outcome() | {
            "durability": given.durability, "seconds": seconds, "seed": given.seed,
        }  # fmt: skip
        results.record("power cuts", outcome)
    for text in (*findings.faults[:20], *findings.damages[:20]):
        print(text)
    if findings.faults or findings.damages:
        print(
            f"replay: ./hf torture power --cuts {given.cuts} --seed {given.seed}"
            f" --durability {given.durability}"
        )
        return 1
    return 0
