"""synchronous=NORMAL under a power cut loses acknowledged jobs, and the checker finds it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

from holdfast.conformance.checker import Findings, check
from holdfast.conformance.faulty_disk import Call, FaultyDisk
from holdfast.conformance.history import HistoryLine, Journal, Recorded, dump
from holdfast.core.model import LeaseRequest, NewJob
from holdfast.core.verdict import Complete, Settlement
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.errors import EngineError
from holdfast.testing.clock import ManualClock

CUTS = 12


async def test_relaxed_durability_is_caught_and_full_is_not(tmp_path: Path) -> None:
    broken: set[str] = set()
    for seed in range(CUTS):
        sound = await cut(tmp_path / f"full-{seed}", seed, "full")
        assert sound.clean, sound.violations
        broken |= (await cut(tmp_path / f"relaxed-{seed}", seed, "relaxed")).rules
    assert "I1" in broken, broken


async def cut(home: Path, seed: int, durability: Literal["full", "relaxed"]) -> Findings:
    """Work until the power goes, then look at what a disk without its cache still has."""
    dice = random.Random(seed)
    home.mkdir()
    disk = FaultyDisk(f"unsynced-{home.name}", dice)
    images: list[dict[str, bytes]] = []

    def at_cut(call: Call, path: str) -> None:
        images.append(disk.image(dice))

    lines: list[HistoryLine] = []
    journal = Journal("p", lines.append)
    clock = ManualClock()
    engine = SQLiteEngine(home / "jobs.db", durability=durability, clock=clock, vfs=disk.name)
    await engine.open()
    disk.faults.cut_power(dice.randint(5, 120), at_cut)
    recorded = Recorded(engine, journal)
    while not images:
        try:
            await work(recorded, dice)
        except EngineError:
            break
    await engine.close()
    after = home / "after"
    after.mkdir()
    for name, content in images[0].items():
        (after / name).write_bytes(content)
    clock.reboot()
    survivor = SQLiteEngine(after / "jobs.db", clock=clock)
    await survivor.open()
    await dump(survivor, journal)
    await survivor.close()
    return check(lines)


async def work(engine: Recorded, dice: random.Random) -> None:
    id_ = f"job-{dice.random()}"
    await engine.enqueue([NewJob(id=id_, task="t", payload=id_.encode())])
    if dice.random() < 0.3:
        for lease in await engine.lease(LeaseRequest(queues=("default",))):
            await engine.settle([Settlement(lease=lease, verdict=Complete())])
