"""What chaos leaves in the store of a user: nothing of its own, and all that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.app import Holdfast
from holdfast.chaos.places import within

pytestmark = pytest.mark.anyio


async def test_queues_of_others_stay(tmp_path: Path) -> None:
    async with Holdfast(f"sqlite:///{tmp_path}/work.db") as app:
        await app.declare("worker.trial-7")
        async with within(app, "trial", named=True) as place:
            await app.declare(place.queue)
            for own in ("worker.trial", "worker.trial-1", "worker.trial-12"):
                await app.declare(own)
            # Workers that somebody else starts meanwhile.
            for other in ("worker.trials", "worker.trial-eu", "worker.trial-1-b"):
                await app.declare(other)
                await app.enqueue("t", {}, queue=other)
        left = {view.queue.name for view in await app.queues() if view.queue.name != "default"}
    assert left == {"worker.trial-7", "worker.trials", "worker.trial-eu", "worker.trial-1-b"}
