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

app: Holdfast = Holdfast("memory://")

_COUNTRIES = {"de": 0.19, "fr": 0.20, "us": 0.0}


@app.task(name="mail.send", max_attempts=5, backoff="exponential(1s, max=8s)", timeout="10s")
async def mail(to: str, template: str = "welcome", *, ctx: Context) -> str:
    """Sends a mail; sometimes the connection fails, and a bad address never works."""
    ctx.log(f"connecting to smtp.example.org for {template}")
    await asyncio.sleep(random.uniform(0.05, 0.4))
    if "@" not in to:
        raise Bury(f"the address {to!r} has no domain")
    if random.random() < 0.15:
        raise ConnectionError("smtp.example.org closed the connection")
    ctx.log(f"250 2.0.0 OK: {to}")
    return f"sent to {to}"


@app.task(name="media.resize", timeout="20s")
def resize(picture: str, width: int, *, ctx: Context) -> str:
    """Works for a while and reports its progress."""
    steps = random.randint(5, 20)
    for step in range(steps):
        time.sleep(random.uniform(0.02, 0.15))
        ctx.progress((step + 1) / steps)
    return f"{picture} at {width}"


@app.task(name="media.transcode", timeout="60s", max_attempts=2, backoff="constant(2s)")
def transcode(video: str, *, ctx: Context) -> str:
    """Runs for many seconds with output line by line; a damaged file fails halfway."""
    seconds = random.randint(8, 20)
    for second in range(seconds):
        time.sleep(1)
        ctx.progress((second + 1) / seconds, f"frame {second * 240}")
        ctx.log(f"frame={second * 240} fps=240 time=00:00:{second:02} speed=8x")
        if second == 4 and random.random() < 0.2:
            raise ValueError(f"moov atom not found in {video}")
    return f"{video} in 1080p"


@app.task(name="reports.primes", timeout="30s")
def primes(below: int) -> int:
    """Blocks the interpreter; its lease is renewed nevertheless."""
    return sum(all(n % d for d in range(2, math.isqrt(n) + 1)) for n in range(2, below))


@app.task(name="shop.import", max_attempts=3, backoff="constant(1s)")
def import_rows(rows: int, *, ctx: Context) -> int:
    """Fails halfway through its first attempt, and continues from its checkpoint."""
    done: int = ctx.resume(0)
    for row in range(done, rows):
        time.sleep(0.01)
        if row % 10 == 0:
            ctx.checkpoint(row)
            ctx.progress(row / rows)
        if ctx.attempt == 1 and row == rows // 2:
            raise Retry("the connection was lost halfway", after="1s")
    return rows


@app.task(name="shop.charge", max_attempts=2, backoff="constant(1s)")
def charge(cents: int, *, ctx: Context) -> str:
    """Charges a card; a job with a large amount is refused and becomes a dead letter."""
    time.sleep(random.uniform(0.1, 0.6))
    if cents > 9_000:
        raise Bury("card declined: insufficient funds")
    ctx.log(f"authorized {cents / 100:.2f} EUR")
    return f"{cents / 100:.2f}"


@app.task(name="shop.invoice", max_attempts=2, backoff="constant(500ms)")
def invoice(order: dict[str, str]) -> float:
    """Has a mistake: it knows few countries, and some orders have none."""
    return round(100 * (1 + _tax(order)), 2)


def _tax(order: dict[str, str]) -> float:
    return _COUNTRIES[order["country"]]


@app.task(name="crm.sync", max_attempts=3, backoff="constant(2s)", timeout="5s")
def sync_contact(contact: int) -> str:
    """Waits for a service that often does not answer in time."""
    if random.random() < 0.3:
        raise TimeoutError("crm.example.org did not answer within 2 s")
    time.sleep(random.uniform(0.05, 0.3))
    return f"contact {contact}"


@app.task(name="media.native", max_attempts=5, max_crashes=2, backoff="constant(1s)", isolated=True)
def native() -> None:
    """Crashes its process, as a faulty native extension would."""
    os.abort()
