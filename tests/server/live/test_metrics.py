"""/metrics: correct, bounded, and continuous across restarts."""

import asyncio
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.core.model import Failure, NewJob, Queue, QueueView
from holdfast.core.verdict import Bury, Complete, Retry
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.registry import open_engine
from holdfast.events import DeadMessagesHandled
from holdfast.process import wall_ms
from holdfast.server.access.caller import LOCAL_CALLER, Caller
from holdfast.server.live import metrics
from holdfast.server.live.metrics import (
    Freshness,
    NamespaceSnapshot,
    SnapshotReader,
    families,
    render,
)
from holdfast.telemetry.accounts import FleetTotals
from holdfast.telemetry.bookkeeper import AccountCloser
from holdfast.telemetry.event_log import DESCRIPTIONS, FeedEventKind
from holdfast.telemetry.meter import BOUNDS, COUNTERS, OTHER, QUEUES_MAX
from holdfast.testing.clock import ManualClock
from tests.server.metered_server import MeteredServer, metered_server
from tests.sources import ROOT
from tests.upkeep.fake_broker import FakeBroker, FakeBrokered

Labels = tuple[tuple[str, str], ...]


@pytest.fixture(params=["memory", "sqlite"])
async def serving(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MeteredServer]:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/work.db"
    async with metered_server(open_engine(url)) as serving:
        yield serving


async def scraped(serving: MeteredServer) -> dict[str, float]:
    answer = await serving.client.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return samples(answer.text)


def samples(text: str) -> dict[str, float]:
    """As Prometheus' own parser reads it: name{label=value,…} → value."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}"
            assert name not in found, f"{name} is there twice"
            found[name] = sample.value
    return found


async def test_counters_are_exposed(serving: MeteredServer) -> None:
    await serving.work(5)
    await serving.work(2, Bury(failure=Failure()))
    await serving.work(1, Retry(60_000))
    await serving.app.enqueue("t")
    await serving.flusher.flush()
    found = await scraped(serving)
    expected = {"enqueued": 9, "leased": 8, "completed": 5, "dead": 2, "failed": 2, "retried": 1}
    for name in COUNTERS:
        assert found[f"holdfast_{name}_total{{queue=default}}"] == expected.get(name, 0), name
    states = {"ready": 1, "delayed": 1, "done": 5, "dead": 2}
    for state in ("ready", "delayed", "blocked", "leased", "done", "dead", "cancelled"):
        name = f"holdfast_jobs{{queue=default,state={state}}}"
        assert found[name] == states.get(state, 0), state
    assert found["holdfast_oldest_age_seconds{queue=default}"] >= 0
    assert found["holdfast_wait_seconds_count{queue=default}"] == 8
    assert found["holdfast_run_seconds_count{queue=default}"] == 8
    assert found["holdfast_wait_seconds_bucket{le=+Inf,queue=default}"] == 8
    assert found["holdfast_commit_batch_jobs_sum{verb=settle}"] == 8
    assert found["holdfast_processes{}"] == 1


async def test_counters_survive_restarts_and_never_decrease(serving: MeteredServer) -> None:
    before: dict[str, float] = {}
    for turn in range(1, 6):
        await serving.work(10)
        if turn % 2:
            # As after a kill: only unflushed counts are lost.
            await serving.app.enqueue("t")
        else:
            await serving.flusher.flush(last=True)
        serving.restart()
        await AccountCloser(serving.app.engine, wall_ms).once()
        found = await scraped(serving)
        assert found["holdfast_completed_total{queue=default}"] == 10 * turn
        for name, value in before.items():
            if "_total{" in name or "_bucket{" in name or "_count{" in name:
                assert found[name] >= value, name
        before = found


async def test_requests_are_counted(serving: MeteredServer) -> None:
    for status in (200, 404):
        serving.meter.requested("show_metrics", status, 3)
    serving.meter.lagged("server", 30)
    await serving.flusher.flush()
    found = await scraped(serving)
    labels = "operation=show_metrics,status=2xx"
    assert found[f"holdfast_request_seconds_count{{{labels}}}"] >= 1
    assert found[f"holdfast_request_seconds_bucket{{le=0.005,{labels}}}"] >= 1
    assert found["holdfast_loop_lag_seconds_sum{role=server}"] == 0.03


async def test_dead_messages_of_a_broker_are_counted() -> None:
    broker = FakeBroker(ManualClock())
    broker.put_dead()
    async with metered_server(FakeBrokered(MemoryEngine(), broker)) as serving:
        outcomes = {"worker.a": {"buried": 2, "finished": 1}, "": {"rejected": 1}}
        for _ in range(2):
            serving.app.listeners(DeadMessagesHandled(outcomes=outcomes, delays_ms=(10, 2_000)))
        await serving.flusher.flush()
        found = await scraped(serving)
        assert found["holdfast_dead_messages_total{outcome=buried,queue=worker.a}"] == 4
        assert found["holdfast_dead_messages_total{outcome=finished,queue=worker.a}"] == 2
        assert found[f"holdfast_dead_messages_total{{outcome=rejected,queue={OTHER}}}"] == 2
        assert found["holdfast_dead_message_delay_seconds_count{}"] == 4
        assert found["holdfast_dead_message_delay_seconds_sum{}"] == 4.02
        assert found["holdfast_broker_dead_messages{}"] == 1
        assert found["holdfast_broker_up{}"] == 1
        prefixed = await serving.seen.for_caller(Caller(name="t", prefix="mail-"))
        assert "broker_up{" not in str(samples(render(prefixed).decode()))


async def test_a_broker_that_is_down_has_no_depth() -> None:
    broker = FakeBroker(ManualClock())
    broker.error = "no route"
    async with metered_server(FakeBrokered(MemoryEngine(), broker)) as serving:
        found = await scraped(serving)
        assert found["holdfast_broker_up{}"] == 0
        assert "holdfast_broker_dead_messages{}" not in found


async def test_frequent_scrapes_read_the_store_rarely() -> None:
    class Counted(MemoryEngine):
        asked = 0

        async def queues(
            self, *, names: Collection[str] | None = None, counts: bool = True
        ) -> list[QueueView]:
            self.asked += 1
            return await super().queues(names=names, counts=counts)

    engine = Counted()
    async with metered_server(engine) as serving:
        seen = SnapshotReader(serving.app, age_s_max=3_600)
        before = engine.asked
        await asyncio.gather(*(seen.for_caller(LOCAL_CALLER) for _ in range(100)))
        assert engine.asked == before + 1


async def test_slow_counts_are_waited_for_only_if_they_are_old(
    serving: MeteredServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that comes once an hour gets counts of now, too."""
    now = 1_000.0
    monkeypatch.setattr(metrics, "monotonic", lambda: now)
    serving.seen.slow_s = -1
    app = serving.app

    async def ready(age_s_max: float) -> tuple[int, bool]:
        [view] = await serving.seen.views(Freshness(age_s_max))
        return view.ready, serving.seen.is_behind

    await app.enqueue_many([app.job("t", 1)])
    assert await ready(0) == (1, False)
    await app.enqueue_many([app.job("t", 1)])
    now += metrics.BEHIND_S_MAX - 1
    assert await ready(60) == (1, False)
    assert (await ready(0))[1]
    assert serving.seen._counting is not None
    await serving.seen._counting
    assert await ready(1) == (2, False)
    await app.enqueue_many([app.job("t", 1)])
    now += metrics.BEHIND_S_MAX
    assert await ready(0) == (3, False)


async def test_one_delayed_count_does_not_make_a_store_slow(
    serving: MeteredServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for took_s in (5.0, 0.0, 5.0, 5.0):
        instants = iter([100.0, 100.0, 100.0 + took_s])
        monkeypatch.setattr(metrics, "monotonic", lambda: next(instants))  # noqa: B023
        await serving.seen.views(Freshness(0))
        found.append(serving.seen.count_s)
    assert found == [0.0, 0.0, 0.0, 5.0]


async def test_concurrent_scrapes_share_one_rendering(
    serving: MeteredServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await serving.work(1)
    serving.seen.age_s_max = 3_600
    await scraped(serving)

    def again(_sight: NamespaceSnapshot) -> bytes:
        raise AssertionError("it was written once more")

    monkeypatch.setattr(metrics, "render", again)
    answers = await asyncio.gather(*(serving.client.get("/metrics") for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}


async def test_a_prefix_sees_only_its_queues(serving: MeteredServer) -> None:
    await serving.app.declare("mail-out")
    await serving.app.declare("secret")
    for queue in ("mail-out", "secret"):
        await serving.work(3, queue=queue)
    serving.meter.requested("x", 200, 1)
    await serving.flusher.flush()
    sight = await serving.seen.for_caller(Caller(name="t", prefix="mail-"))
    found = samples(render(sight).decode())
    assert found["holdfast_completed_total{queue=mail-out}"] == 3
    told = {name for name in found if "mail-out" not in name}
    assert {name for name in told if "_alerts{" not in name} == {
        "holdfast_processes{}",
        "holdfast_queues_summed{}",
    }
    assert sum(value for name, value in found.items() if "_alerts{" in name) == 0
    assert found["holdfast_processes{}"] == 0


async def test_the_number_of_series_is_bounded() -> None:
    """The busiest queues have their own, also those of workers; tenants, keys and ids have none."""
    async with metered_server(MemoryEngine()) as serving:
        for number in range(QUEUES_MAX + 20):
            await serving.app.declare(f"q{number:03}")
        await serving.app.declare("worker.host-1")
        for number in range(QUEUES_MAX + 20):
            job = NewJob(id=f"id-{number}", task="t", queue=f"q{number:03}", tenant=f"tn{number}")
            await serving.app.engine.enqueue([job])
        for _ in range(3):
            await serving.app.enqueue("t", queue="worker.host-1")
        await serving.flusher.flush()
        found = await scraped(serving)
    queues = {
        name.split("queue=")[1].split(",")[0].rstrip("}") for name in found if "queue=" in name
    }
    assert len(queues) == QUEUES_MAX + 1
    assert {OTHER, "worker.host-1"} <= queues
    assert found["holdfast_enqueued_total{queue=worker.host-1}"] == 3
    assert found["holdfast_queues_summed{}"] == 22
    assert found[f"holdfast_enqueued_total{{queue={OTHER}}}"] == 21
    assert found[f"holdfast_jobs{{queue={OTHER},state=ready}}"] == 21
    assert sum(value for name, value in found.items() if "state=ready" in name) == QUEUES_MAX + 23
    assert not any(word in name for name in found for word in ("id-", "tn1"))


def test_every_metric_is_in_the_documentation_and_no_other() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `holdfast_")]
    assert [row for row in rows if row.count("|") == 5] == [
        f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {says} |"
        for name, kind, labels, says in table()
    ]


def test_every_event_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    assert set(DESCRIPTIONS) == set(FeedEventKind)
    for kind, says in DESCRIPTIONS.items():
        assert f"| `{kind}` | {says} |" in page


def table() -> list[tuple[str, str, tuple[str, ...], str]]:
    """Each metric: name, type, labels and help."""
    sight = NamespaceSnapshot(views=[QueueView(queue=Queue(name="default"))], fleet=FleetTotals())
    return [
        (
            each.name + ("_total" if each.type == "counter" else ""),
            each.type,
            getattr(each, "_labelnames", ()),
            each.documentation,
        )
        for each in families(sight)
    ]


def test_histogram_bounds_are_exposed() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    for bounds in BOUNDS.values():
        assert ", ".join(f"{bound:,}" for bound in bounds) in page


async def test_completed_counts_complete_verdicts() -> None:
    async with metered_server(MemoryEngine()) as serving:
        await serving.work(1, Complete(b"1"))
        assert (await scraped(serving))["holdfast_completed_total{queue=default}"] == 1


def test_an_unknown_age_has_no_sample_and_bounds_only_where_the_store_has_them() -> None:
    views = [
        QueueView(queue=Queue(name="far"), ready=1, deleted_after_ms=60_000, leased_max=120_000),
        QueueView(queue=Queue(name="near"), ready=1, oldest_age_ms=1_500),
        QueueView(queue=Queue(name="empty")),
    ]
    found = samples(render(NamespaceSnapshot(views=views, fleet=FleetTotals())).decode())
    ages = {name: value for name, value in found.items() if "oldest_age_" in name}
    assert ages == {
        "holdfast_oldest_age_seconds{queue=near}": 1.5,
        "holdfast_oldest_age_seconds{queue=empty}": 0,
    }
    bounds = {name: value for name, value in found.items() if "_after" in name or "_max" in name}
    assert bounds == {
        "holdfast_deleted_after_seconds{queue=far}": 60,
        "holdfast_leased_max{queue=far}": 120_000,
    }
