"""A storm over an engine that loses jobs: run as a program, it prints what the checker found."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

from holdfast.engines.base import Engine
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.testing.clock import ManualClock
from tests.mutants.mutants import AckBeforeCommit
from torture.stores import Store
from torture.storm import Storm, Weather

if __name__ == "__main__":
    home = Path(sys.argv[1])

    def make() -> Engine:
        return cast(Engine, AckBeforeCommit(SQLiteEngine(home / "jobs.db"), ManualClock()))

    weather = Weather(processes=3, kills=15, seconds=3, seed=1, freezes=0, server_kills=0)
    histories = home / "histories"
    histories.mkdir()
    findings = Storm(Store("sqlite", make, None), weather, histories).run()
    print(" ".join(sorted(findings.rules)))
