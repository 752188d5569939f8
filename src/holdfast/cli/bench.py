"""`holdfast bench`: what this store does on this machine, on a queue of its own that is dropped."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.app import Holdfast
from holdfast.cli.output import COMMON, Common, print_json, print_table, say
from holdfast.cli.running import progress, running
from holdfast.core.text import counted
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.errors import EngineError, UsageError
from holdfast.options import new_id

_SINGLES = 100
_PAYLOAD = b"x" * 256


async def bench(
    *,
    jobs: Annotated[int, Parameter(help="How many jobs go through.")] = 10_000,
    batch: Annotated[int, Parameter(help="How many in one call.")] = 500,
    common: Common = COMMON,
) -> None:
    """Measure enqueue, lease and settle here. Uses a queue of its own and drops it afterwards."""
    if not 1 <= batch <= 1_000 or not batch <= jobs <= 1_000_000:
        raise UsageError("--batch is 1 to 1000, and --jobs from that to 1000000")
    async with running(common, create=True) as app:
        queue = f"bench-{new_id()[-12:]}"
        await app.declare(queue, retention=0)
        try:
            told = await _measure(app, queue, jobs, batch)
        finally:
            await app.drop(queue)
        place = app.place
    if common.json:
        print_json({"place": place, "jobs": jobs, "batch": batch, "results": told})
        return
    say(f"{counted(jobs, 'job')} of {len(_PAYLOAD)} bytes, {batch} in a call, on {place}")
    rows = [
        (name, f"{value:,.0f}" if value >= 10 else f"{value:.2f}") for name, value in told.items()
    ]
    print_table(("what", "value"), rows)


async def _measure(app: Holdfast, queue: str, jobs: int, batch: int) -> dict[str, float]:
    made = [app.job("bench", _PAYLOAD, queue=queue) for _ in range(jobs)]
    with progress("measuring", 3 * jobs) as advance:

        async def put() -> None:
            for at in range(0, jobs, batch):
                await app.engine.enqueue(made[at : at + batch])
                advance(batch)

        async def work() -> None:
            done = 0
            while done < jobs:
                leases = await app.lease(queue, limit=batch, worker="bench")
                ended = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
                outcomes = await app.engine.settle(ended) if ended else []
                if not outcomes or outcomes.count(Outcome.SETTLED) != len(outcomes):
                    raise EngineError("the bench lost a lease: is somebody else on its queue?")
                done += len(leases)
                advance(2 * len(leases))

        enqueue_s = await _timed(put)
        work_s = await _timed(work)
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
