"""The application of Holdfast's workers: the same two tasks as for every peer."""

from __future__ import annotations

from functools import cache

from bench.peers.tally import Tally
from holdfast import Holdfast

app = Holdfast()
_tally = cache(Tally)


@app.task(name="noop")
async def noop(text: str) -> None:
    _tally().ran()


@app.task(name="late")
async def late(text: str) -> None:
    _tally().started(text)
