"""Seeded simulation of producers, workers, reapers and operators over any engine.

`simulate(seed, make_engine)` runs one seed and checks its history; a failure names the seed and
the command that replays it.
"""

from __future__ import annotations

import msgspec

from holdfast.testing.checker import Findings, check
from holdfast.testing.history import Line
from holdfast.testing.simulate.plan import FAULTS, FEATURES, Plan, draw
from holdfast.testing.simulate.world import MakeEngine, World

__all__ = ["FAULTS", "FEATURES", "MakeEngine", "Plan", "Run", "draw", "run", "simulate"]


class Run(msgspec.Struct, frozen=True):
    plan: Plan
    findings: Findings
    lines: list[Line]

    def explain(self, engine: str) -> str:
        """What went wrong, under what circumstances, and how to see it again."""
        shown = "\n".join(str(violation) for violation in self.findings.violations[:3])
        plan = self.plan
        return (
            f"seed {plan.seed} on {engine}: {len(self.findings.violations)} violations\n"
            f"faults: {', '.join(sorted(plan.faults)) or 'none'}\n"
            f"features: {', '.join(sorted(plan.features)) or 'none'}\n"
            f"replay: ./hf torture simulate --engine {engine} --seed {plan.seed}"
            f" --steps {plan.steps}\n{shown}\n{self.findings.brief}"
        )


async def simulate(
    seed: int,
    make_engine: MakeEngine,
    *,
    steps: int = 400,
    without: frozenset[str] = frozenset(),
) -> Run:
    """`make_engine` is asked again at every simulated restart: it must lead to the same store."""
    return await run(draw(seed, steps=steps, without=without), make_engine)


async def run(plan: Plan, make_engine: MakeEngine) -> Run:
    lines = await World(plan, make_engine).run()
    return Run(plan, check(lines), lines)
