"""The application of workers that hold messages in flight: a job that waits until it is stopped."""

from __future__ import annotations

import asyncio

from holdfast import Holdfast

app = Holdfast()


@app.task(name="hold")
async def hold() -> None:
    await asyncio.Event().wait()
