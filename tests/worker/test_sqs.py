"""A real worker on Amazon SQS: its handlers see their message, and nothing fails for lack of a
place for results and notes."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast.app.application import Holdfast
from tests.engines.sqs.servers import client
from tests.worker.live_workers import Place, until

pytestmark = pytest.mark.usefixtures("aws")

TARGET = f"{Path(__file__).with_name('sqs_app.py')}:app"


@pytest.fixture
async def sqs_place(tmp_path: Path, endpoint: str, aws: None) -> AsyncIterator[Place]:
    prefix = f"t{uuid4().hex[:8]}-"
    control = f"control=sqlite:///{tmp_path}/control.db"
    url = f"sqs://us-east-1/{prefix}?endpoint={endpoint}&create=true&{control}"
    async with Holdfast(url) as app:
        place = Place(tmp_path, url, app)
        yield place
        await place.end()


def journal(place: Place) -> dict[str, dict[str, Any]]:
    path = place.folder / "journal.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["word"]: entry for entry in map(json.loads, lines)}


async def test_a_worker_on_sqs(sqs_place: Place, endpoint: str) -> None:
    place = sqs_place
    for task in ("show", "fail", "long", "along"):
        # Enqueued before the worker knows its tasks: it must not receive them in vain.
        await place.enqueue(task, task, max_attempts=1)
    await place.worker(target=TARGET, commands=True)
    words = {"show", "letter", "long", "along"}
    await until(lambda: journal(place).keys() >= words, "all of them")
    found = journal(place)
    sqs = found["show"]["sqs"]
    assert sqs["queue_arn"].endswith(f":{sqs['queue_name']}")
    assert sqs["queue_url"].endswith(f"/{sqs['queue_name']}")
    assert sqs["queue_name"].endswith("-default")
    assert (sqs["poison"], bool(sqs["message_id"]), bool(sqs["receipt_handle"])) == (
        False,
        True,
        True,
    )
    assert sqs["visible_at"] > 0
    letter = found["letter"]
    assert (letter["poison"], letter["reason"], letter["origin"]) == (True, "attempts", "default")
    assert (letter["attempts"], letter["failures"]) == (1, [f"nothing in {place.folder}"])

    async def is_empty() -> bool:
        (view,) = await place.app.engine.queues(names=["default"])
        return view.ready + view.leased + view.dead == 0

    await until(is_empty, "the messages to be deleted, the letter from its own queue")
    boto = client(endpoint)
    urls = boto.list_queues(QueueNamePrefix=sqs["queue_name"])["QueueUrls"]
    assert sorted(url.rpartition("/")[2] for url in urls) == [
        sqs["queue_name"],
        f"{sqs['queue_name']}-dlq",
    ]
    log = place.stderr()
    assert log.count("stores no results") == 1
    assert "Traceback" not in log
    assert "credentials" not in log
    (worker,) = await place.workers()
    assert worker.record.done >= 3
