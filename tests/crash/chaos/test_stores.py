"""Chaos removes its own queues and records from a user's store, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.app.application import Holdfast
from holdfast.conformance.chaos.scenario import store_within

pytestmark = pytest.mark.anyio


async def test_queues_of_others_stay(tmp_path: Path) -> None:
    async with Holdfast(f"sqlite:///{tmp_path}/work.db") as app:
        await app.declare("worker.trial-7")
        async with store_within(app, "trial", named=True) as place:
            await app.declare(place.queue)
            for own in ("worker.trial", "worker.trial-1", "worker.trial-12"):
                await app.declare(own)
            # Workers that somebody else starts meanwhile.
            for other in ("worker.trials", "worker.trial-eu", "worker.trial-1-b"):
                await app.declare(other)
                await app.enqueue("t", {}, queue=other)
        left = {view.queue.name for view in await app.queues() if view.queue.name != "default"}
    assert left == {"worker.trial-7", "worker.trials", "worker.trial-eu", "worker.trial-1-b"}
