"""`holdfast bench`: measure this store on this machine, in a temporary queue."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from holdfast.app.application import Holdfast
from holdfast.cli.flags import option
from holdfast.cli.output import COMMON, Common, print_json, print_table, progress, say
from holdfast.cli.session import open_app
from holdfast.core.text import counted
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.errors import EngineError, UsageError
from holdfast.notation.options import new_id

_SINGLES = 100
_PAYLOAD = b"x" * 256


async def bench(
    *,
    jobs: Annotated[int, option("N", "Measure with this many jobs.")] = 10_000,
    batch: Annotated[int, option("N", "Jobs in one call.")] = 500,
    common: Common = COMMON,
) -> None:
    """Measure how fast this store enqueues, hands out and finishes jobs.

    It creates a queue for this and deletes it afterwards.
    """
    if not 1 <= batch <= 1_000 or not batch <= jobs <= 1_000_000:
        raise UsageError("--batch must be 1 to 1000, and --jobs between --batch and 1000000")
    async with open_app(common, create=True) as app:
        queue = f"bench-{new_id()[-12:]}"
        await app.declare(queue, retention=0)
        try:
            results = await _measure(app, queue, jobs, batch)
        finally:
            await app.drop(queue)
        place = app.place
    if common.json:
        print_json({"place": place, "jobs": jobs, "batch": batch, "results": results})
        return
    say(f"{counted(jobs, 'job')} of {len(_PAYLOAD)} bytes, {batch} per call, on {place}")
    rows = [
        (name, f"{value:,.0f}" if value >= 10 else f"{value:.2f}")
        for name, value in results.items()
    ]
    print_table(("what", "value"), rows)


async def _measure(app: Holdfast, queue: str, jobs: int, batch: int) -> dict[str, float]:
    made = [app.job("bench", _PAYLOAD, queue=queue) for _ in range(jobs)]
    with progress("measuring", 3 * jobs) as advance:

        async def enqueue() -> None:
            for at in range(0, jobs, batch):
                await app.engine.enqueue(made[at : at + batch])
                advance(batch)

        async def lease_and_settle() -> None:
            done = 0
            while done < jobs:
                leases = await app.lease(queue, limit=batch, worker="bench")
                settlements = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
                outcomes = await app.engine.settle(settlements) if settlements else []
                if not outcomes or outcomes.count(Outcome.SETTLED) != len(outcomes):
                    raise EngineError("a lease was lost: does another worker use this queue?")
                done += len(leases)
                advance(2 * len(leases))

        enqueue_s = await _timed(enqueue)
        work_s = await _timed(lease_and_settle)
    singles = [
        await _timed(lambda: app.enqueue("bench", _PAYLOAD, queue=queue)) for _ in range(_SINGLES)
    ]
    singles.sort()
    return {
        "enqueued/s": jobs / enqueue_s,
        "leased and settled/s": jobs / work_s,
        "one enqueue, median ms": singles[_SINGLES // 2] * 1000,
        "one enqueue, p99 ms": singles[-1 - _SINGLES // 100] * 1000,
    }


async def _timed(act: Callable[[], Awaitable[Any]]) -> float:
    started = time.perf_counter()
    await act()
    return time.perf_counter() - started
