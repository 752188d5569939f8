"""The tasks of `holdfast demo`; each ends in a different way."""

from __future__ import annotations

import asyncio
import math
import os
import random
import time

from holdfast.app.application import Holdfast
from holdfast.worker.child.context import Context
from holdfast.worker.outcomes import Bury, Retry

app = Holdfast("memory://")


@app.task(name="mail", max_attempts=5, backoff="exponential(1s, max=8s)", timeout="10s")
async def mail(to: str, *, ctx: Context) -> str:
    """Sends a mail; sometimes the connection fails."""
    await asyncio.sleep(random.uniform(0.05, 0.4))
    if random.random() < 0.15:
        raise ConnectionError("the mail server closed the connection")
    ctx.log(f"sent to {to}")
    return f"sent to {to}"


@app.task(name="resize", timeout="20s")
def resize(picture: str, width: int, *, ctx: Context) -> str:
    """Works for a while and reports its progress."""
    steps = random.randint(5, 20)
    for step in range(steps):
        time.sleep(random.uniform(0.02, 0.15))
        ctx.progress((step + 1) / steps)
    return f"{picture} at {width}"


@app.task(name="primes", timeout="30s")
def primes(below: int) -> int:
    """Blocks the interpreter; its lease is renewed nevertheless."""
    return sum(all(n % d for d in range(2, math.isqrt(n) + 1)) for n in range(2, below))


@app.task(name="import", max_attempts=3, backoff="constant(1s)")
def import_rows(rows: int, *, ctx: Context) -> int:
    """Fails halfway through its first attempt, and continues from its checkpoint."""
    done: int = ctx.resume(0)
    for row in range(done, rows):
        time.sleep(0.01)
        if row % 10 == 0:
            ctx.checkpoint(row)
        if ctx.attempt == 1 and row == rows // 2:
            raise Retry("the connection was lost halfway", after="1s")
    return rows


@app.task(name="charge", max_attempts=2, backoff="constant(1s)")
def charge(cents: int) -> str:
    """Charges a card; a job with a large amount is refused and becomes a dead letter."""
    if cents > 9_000:
        raise Bury("the card was refused")
    return f"{cents / 100:.2f}"


@app.task(name="native", max_attempts=5, max_crashes=2, backoff="constant(1s)", isolated=True)
def native() -> None:
    """Crashes its process, as a faulty native extension would."""
    os.abort()
