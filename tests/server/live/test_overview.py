"""The overview: every queue in a fixed number of reads, what a caller may see, null for unknown."""

from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest

from holdfast import __version__
from holdfast.core.model import Queue, QueueView, Record
from holdfast.core.verdict import Bury
from holdfast.core.workers import KIND, WorkerRecord
from holdfast.engines.base import Traits
from holdfast.engines.memory import MemoryEngine
from holdfast.ops.queues import Pause, pause_queue
from holdfast.ops.tokens import TokenRequest
from holdfast.ops.workers import WORKERS
from holdfast.process import wall_ms
from holdfast.server.live.overview import shown_age
from holdfast.server.settings import ServerSettings
from holdfast.telemetry.snapshots import SNAPSHOTS, snapshot_key, take_snapshot
from tests.server.metered_server import MeteredServer, metered_server

MINUTE = 60_000


class Counted(MemoryEngine):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    async def queues(
        self, *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        self.calls["queues"] += 1
        return await super().queues(names=names, counts=counts)

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        self.calls[kind] += 1
        return await super().load(kind, after=after, limit=limit)


async def get(serving: MeteredServer, token: str = "") -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = await serving.client.get("/v1/overview", headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def come(serving: MeteredServer, name: str, queues: dict[str, int], **more: Any) -> None:
    record = WorkerRecord(
        name=name, id="i", host="h", pid=1, started_at=0, version=__version__, queues=queues, **more
    )
    await serving.app.engine.save([WORKERS.record(name, record)])


async def snap(serving: MeteredServer, ago_ms: int) -> None:
    """A snapshot of the present counts, as if it had been taken earlier."""
    at = wall_ms() - ago_ms
    views = await serving.app.engine.queues()
    snapshot = take_snapshot(await serving.seen.fleet(), views, at)
    record = SNAPSHOTS["minute"].record(snapshot_key("minute", at), snapshot)
    await serving.app.engine.save([record])


async def test_a_queue_with_its_rates_waits_and_workers() -> None:
    async with metered_server(MemoryEngine()) as serving:
        await come(serving, "w", {"default": 1}, capacity=8, running=2)
        await serving.work(10)
        await snap(serving, 2 * MINUTE)
        await serving.work(60)
        await serving.work(6, Bury())
        await serving.app.enqueue_many(serving.app.job("t", n) for n in range(3))
        body = await get(serving)
        queue = body["queues"]["default"]
        assert {name: queue[name] for name in ("ready", "leased", "done", "dead")} == {
            "ready": 3,
            "leased": 0,
            "done": 70,
            "dead": 6,
        }
        assert queue["rate_out"] == pytest.approx(66 / 120, rel=0.1)
        assert queue["rate_in"] == pytest.approx(69 / 120, rel=0.1)
        assert queue["wait_p50"] <= queue["wait_p95"] < 10
        assert (queue["workers"], queue["slots"], queue["utilisation"]) == (1, 8, 0.25)
        assert len(queue["sparkline"]) == 15
        assert body["workers"] == {"alive": 1, "unhealthy": 0, "slots": 8, "busy": 2}
        assert body["totals"]["dead"] == 6
        [spike] = body["attention"]
        assert (spike["kind"], spike["queue"], spike["count"]) == ("dead_letters", "default", 6)


async def test_what_is_not_known_is_null() -> None:
    async with metered_server(MemoryEngine()) as serving:
        await serving.app.enqueue_many([serving.app.job("t", 1)])
        queue = (await get(serving))["queues"]["default"]
        for name in ("rate_in", "rate_out", "wait_p50", "wait_p95", "utilisation"):
            assert queue[name] is None, name
        assert queue["sparkline"] == [None] * 15
        assert queue["oldest_age"] == 0
        assert "paused_reason" not in queue


class Recordless(MemoryEngine):
    """Keeps no records."""

    @property
    def traits(self) -> Traits:
        from msgspec.structs import replace

        return replace(super().traits, records=False)


async def test_a_store_without_records_has_an_overview() -> None:
    async with metered_server(Recordless()) as serving:
        await serving.app.engine.declare(Queue(name="mail", paused=True))
        body = await get(serving)
        assert set(body["queues"]) == {"default", "mail"}
        assert body["queues"]["mail"]["workers"] is None
        assert body["workers"] == {"alive": None, "unhealthy": None, "slots": None, "busy": None}


@pytest.mark.parametrize("queues", [1, 200])
async def test_the_number_of_reads_does_not_depend_on_the_number_of_queues(queues: int) -> None:
    store = Counted()
    async with metered_server(store) as serving:
        for number in range(queues):
            name = f"q{number:03}"
            await serving.app.engine.declare(Queue(name=name, paused=number % 2 == 0))
            await serving.app.enqueue_many([serving.app.job("t", 1, queue=name)])
            await come(serving, f"w{number:03}", {name: 1}, capacity=1)
        await serving.flusher.flush()
        await snap(serving, 2 * MINUTE)
        store.calls.clear()
        body = await get(serving)
        assert len(body["queues"]) == queues + 1
        assert store.calls.pop("token", 0) <= 1
        assert dict(store.calls) == {
            "queues": 1,
            "alert": 1,
            "minutes": 1,
            "counters": 1,
            "order": 1,
            "unattended": 1,
            KIND: 1,
            "breaker": 1,
            "gate": 1,
            "pause": 1,
        }


async def test_a_pause_is_shown_with_its_reason_and_can_be_ended() -> None:
    async with metered_server(MemoryEngine()) as serving:
        await serving.app.enqueue_many([serving.app.job("t", 1)])
        pause = Pause(by="ann", text="a migration", at=wall_ms())
        await pause_queue(serving.app.engine, "default", pause)
        body = await get(serving)
        assert body["queues"]["default"]["paused_reason"] == "a migration"
        [item] = body["attention"]
        act = item["act"]
        answer = await serving.client.request(act["method"], act["path"], json=act.get("body"))
        assert answer.status_code == 200, answer.text
        body = await get(serving)
        assert not body["queues"]["default"]["paused"]
        assert [each["kind"] for each in body["attention"]] == ["no_worker"]


async def test_a_caller_sees_only_what_its_token_allows() -> None:
    async with metered_server(MemoryEngine(), ServerSettings(auth=True)) as serving:
        tokens = {}
        for name, scopes, prefix in (
            ("all", ("operate",), ""),
            ("mail", ("operate",), "mail"),
            ("looker", ("observe",), ""),
            ("worker", ("consume",), ""),
        ):
            wanted = TokenRequest(name=name, scopes=scopes, prefix=prefix)
            tokens[name], _ = await serving.server.tokens.create(wanted)
        engine = serving.app.engine
        for name in ("mail", "mail.bulk", "secret"):
            await engine.declare(Queue(name=name, paused=True))
            await serving.app.enqueue_many([serving.app.job("t", 1, queue=name)])
        await come(serving, "w", {"secret": 1, "mail": 1}, capacity=4)
        await come(serving, "spy", {"secret": 1}, capacity=4, blocked="stuck")
        whole, part = await get(serving, tokens["all"]), await get(serving, tokens["mail"])
        assert set(whole["queues"]) == {"default", "mail", "mail.bulk", "secret"}
        assert set(part["queues"]) == {"mail", "mail.bulk"}
        assert part["totals"]["ready"] == 2
        assert part["workers"]["alive"] == 1
        kinds = {(item["kind"], item.get("queue")) for item in part["attention"]}
        assert kinds == {("queue_paused", "mail"), ("queue_paused", "mail.bulk")}
        assert "secret" not in str(part)
        assert "spy" not in str(part)
        assert any("act" in item for item in whole["attention"])
        looker = await get(serving, tokens["looker"])
        assert set(looker["queues"]) == set(whole["queues"])
        assert not any("act" in item for item in looker["attention"])
        headers = {"Authorization": f"Bearer {tokens['worker']}"}
        assert (await serving.client.get("/v1/overview", headers=headers)).status_code == 403
        assert (await serving.client.get("/v1/overview")).status_code == 401


async def test_an_empty_queue_of_a_worker_is_left_out() -> None:
    async with metered_server(MemoryEngine()) as serving:
        for name in ("worker.idle", "worker.busy"):
            await serving.app.engine.declare(Queue(name=name))
        await serving.app.enqueue_many([serving.app.job("t", 1, queue="worker.busy")])
        body = await get(serving)
        assert set(body["queues"]) == {"default", "worker.busy"}
        assert body["totals"]["ready"] == 1


def test_ages_are_rounded_down_the_more_the_older() -> None:
    ages = (999, 7_500, 59_900, 61_000, 3_599_000, 3_700_000, 86_400_000)
    assert [shown_age(age) for age in ages] == [0, 5, 55, 60, 3_540, 3_600, 86_400]
