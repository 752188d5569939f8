"""The live stream: a snapshot and then patches, read and encoded once for viewers alike."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import msgspec
import pytest

from holdfast.app.application import Holdfast
from holdfast.core.model import (
    Job,
    JobFilter,
    LeaseRequest,
    NewJob,
    Note,
    Queue,
    QueueView,
    Record,
    Renewal,
)
from holdfast.core.verdict import BuryWaiting, Cancel, Complete, Delete, Retry, Settlement
from holdfast.core.workers import WorkerRecord
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable
from holdfast.notation.durations import show_at
from holdfast.ops.alerts import ALERTS, Alert
from holdfast.ops.jobs.acts import ActPlan, Acts
from holdfast.ops.queues import Pause, pause_queue
from holdfast.ops.redrives import RedrivePlan, Redrives
from holdfast.ops.settings import save_setting
from holdfast.ops.tokens import TokenRequest
from holdfast.ops.workers import WORKERS
from holdfast.process import wall_ms
from holdfast.server.access.authorized_engine import AccessControls
from holdfast.server.access.caller import Scope, with_implied
from holdfast.server.access.redaction import Redaction
from holdfast.server.live import metrics, stream, topics
from holdfast.server.live.metrics import snapshot_reader
from holdfast.server.live.overview import overview_reader
from holdfast.server.live.poll_loop import PollLoop, poll_loop
from holdfast.server.live.stream import LiveHub, live_hub, merge_patch
from holdfast.server.live.topics import Rights
from holdfast.server.settings import ServerSettings
from tests.server.metered_server import MeteredServer, metered_server

HELLO = b"retry: 2000\n\n"
OPERATOR = Rights("", with_implied([Scope.OPERATE]))
OBSERVER = Rights("", with_implied([Scope.OBSERVE]))


@pytest.fixture(autouse=True)
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, every tick reads every topic."""
    monkeypatch.setattr(stream, "_REST", 0)


class Counted(MemoryEngine):
    """Counts its reads, and fails while it is `down`."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.down = False

    def _count(self, name: str) -> None:
        self.reads[name] += 1
        if self.down:
            raise EngineUnavailable("away")

    async def queues(
        self, *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        self._count("counts" if counts else "queues")
        return await super().queues(names=names, counts=counts)

    async def get(self, id: str) -> Job | None:
        self._count("get")
        return await super().get(id)

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        self._count(kind)
        return await super().load(kind, after=after, limit=limit)


class Watched:
    """The data of topics as a page has it, from the events of a stream."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts
        self._rest = b""
        self.data: dict[str, Any] = {}
        self.events: list[tuple[str, Any]] = []

    async def next(self) -> tuple[str, Any]:
        """The next event, applied to the data."""
        while b"\n\n" not in self._rest:
            self._rest += await anext(self._parts)
        text, _, self._rest = self._rest.partition(b"\n\n")
        fields = dict(line.split(": ", 1) for line in text.decode().splitlines())
        if "event" not in fields:
            return await self.next()
        name, body = fields["event"], msgspec.json.decode(fields["data"])
        match name:
            case "snapshot":
                self.data[body["topic"]] = without_nulls(body["data"])
            case "change":
                topic = body["topic"]
                self.data[topic] = applied(self.data[topic], body["patch"])
            case "gone":
                self.data.pop(body["topic"], None)
            case _:
                assert name == "tick"
        self.events.append((name, body))
        return name, body

    @property
    def is_waiting(self) -> bool:
        return not self._rest


def applied(target: Any, patch: Any) -> Any:
    """RFC 7396, as its text has it."""
    if not isinstance(patch, dict):
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = applied(found.get(name), value)
    return found


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return value


class Driver:
    """A hub that is polled by hand, on a clock of its own."""

    def __init__(self, app: Holdfast) -> None:
        self.app = app
        self.now = 1_800_000_000_000
        snapshot_reader(app).age_s_max = 0
        self.loop = PollLoop(poll_s=None)
        self.hub = LiveHub(
            app.engine,
            overview_reader(app),
            self.loop,
            now=lambda: self.now,
            ticks=lambda: self.now / 1000,
        )
        self._open: list[AsyncGenerator[bytes]] = []

    async def watch(self, *wanted: str, rights: Rights = OPERATOR) -> Watched:
        parts = self.hub.stream(rights, wanted)
        assert await anext(parts) == HELLO
        self._open.append(parts)
        return Watched(parts)

    async def poll(self, seconds: int = 1) -> None:
        self.now += seconds * 1_000
        await self.hub.poll()

    async def close(self) -> None:
        for parts in self._open:
            await parts.aclose()


@pytest.fixture
async def store() -> Counted:
    return Counted()


@pytest.fixture
async def driver(store: Counted) -> AsyncIterator[Driver]:
    async with Holdfast(engine=store) as app:
        driver = Driver(app)
        yield driver
        await driver.close()


async def test_a_snapshot_and_then_only_what_changed(driver: Driver) -> None:
    watched = await driver.watch("overview")
    name, body = await watched.next()
    assert (name, body["topic"]) == ("snapshot", "overview")
    assert body["data"]["queues"]["default"]["ready"] == 0
    await driver.app.enqueue_many([driver.app.job("t", 1)])
    await driver.poll()
    name, body = await watched.next()
    assert (name, body["topic"]) == ("change", "overview")
    assert body["as_of"] == "2027-01-15T08:00:01Z"
    assert body["patch"]["queues"] == {"default": {"ready": 1, "oldest_age": 0.0}}
    assert body["patch"]["totals"] == {"ready": 1}
    assert [item["kind"] for item in body["patch"]["attention"]] == ["no_worker"]
    assert "workers" not in body["patch"]


async def test_nothing_is_sent_while_nothing_changes_but_a_tick(driver: Driver) -> None:
    watched = await driver.watch("overview", "workers", "redrives", "queue:default")
    for _ in range(4):
        await watched.next()
    waiting = asyncio.ensure_future(watched.next())
    for _ in range(4):
        await driver.poll()
        await asyncio.sleep(0)
        assert not waiting.done()
    await driver.poll()
    assert await waiting == ("tick", {"as_of": "2027-01-15T08:00:05Z"})


async def test_one_read_and_one_encoding_for_viewers_alike(
    driver: Driver, store: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: Counter[bytes] = Counter()
    event = stream._event

    def count(name: bytes, body: Any) -> bytes:
        encoded[name] += 1
        return event(name, body)

    monkeypatch.setattr(stream, "_event", count)
    viewers = [await driver.watch("overview", "queue:default") for _ in range(50)]
    for watched in viewers:
        await watched.next()
        await watched.next()
    assert encoded == {b"snapshot": 2}
    await driver.app.enqueue_many([driver.app.job("t", 1)])
    store.reads.clear()
    await driver.poll()
    one = dict(store.reads)
    for watched in viewers:
        assert [(await watched.next())[0] for _ in range(2)] == ["change", "change"]
    assert encoded == {b"snapshot": 2, b"change": 2}
    # As many reads as a single viewer causes, and none twice.
    assert set(one.values()) <= {1, 2}
    assert one["worker"] == one["pause" if "pause" in one else "order"] == 1


async def test_rights_share_reads_but_not_what_they_see(driver: Driver, store: Counted) -> None:
    engine = driver.app.engine
    for name in ("mail", "secret"):
        await engine.declare(Queue(name=name, paused=True))
        await driver.app.enqueue_many([driver.app.job("t", 1, queue=name)])
    prefixed = Rights("mail", with_implied([Scope.OPERATE]))
    everyone = [await driver.watch("overview", rights=r) for r in (OPERATOR, OBSERVER, prefixed)]
    for watched in everyone:
        await watched.next()
    operator, observer, mail = (watched.data["overview"] for watched in everyone)
    assert set(operator["queues"]) == set(observer["queues"]) == {"default", "mail", "secret"}
    assert set(mail["queues"]) == {"mail"}
    assert "secret" not in str(mail)
    assert any("act" in item for item in operator["attention"])
    assert not any("act" in item for item in observer["attention"])
    store.reads.clear()
    await driver.poll()
    assert store.reads["worker"] == 1


async def test_only_what_is_watched_is_read(driver: Driver, store: Counted) -> None:
    job = await driver.watch("job:none")
    assert await job.next() == (
        "gone",
        {
            "topic": "job:none",
            "code": "not_found",
            "message": "unknown job 'none': it was deleted or never existed",
        },
    )
    workers = await driver.watch("workers")
    await workers.next()
    store.reads.clear()
    await driver.poll()
    assert dict(store.reads) == {"get": 1, "worker": 1, "order": 1, "unattended": 1}
    await driver.close()
    store.reads.clear()
    await driver.poll()
    assert not store.reads


async def test_a_job_with_its_timeline_and_output(driver: Driver) -> None:
    engine = driver.app.engine
    payload = b'"' + b"x" * 100_000 + b'"'
    await engine.enqueue([NewJob(id="a", task="t", payload=payload)])
    watched = await driver.watch("job:a")
    await watched.next()
    assert len(str(watched.events)) < 10_000
    shown = watched.data["job:a"]["job"]
    assert shown["payload_bytes"] == len(payload)
    assert {"payload", "payload_base64", "result", "output", "failures"}.isdisjoint(shown)
    assert "output" not in watched.data["job:a"]
    [lease] = await engine.lease(LeaseRequest(queues=("default",), worker="w"))
    await driver.poll()
    await watched.next()
    await engine.renew([Renewal(lease=lease, note=Note(progress=0.5, output=b"line 1\n"))])
    await driver.poll()
    patch = (await watched.next())[1]["patch"]
    patch["job"].pop("deadline_at", None)
    assert patch == {"job": {"progress": 0.5}, "output": "line 1\n"}
    await engine.settle([Settlement(lease=lease, verdict=Retry(0))])
    [lease] = await engine.lease(LeaseRequest(queues=("default",), worker="w2"))
    await engine.settle([Settlement(lease=lease, verdict=Complete(b"7"))])
    await driver.poll()
    await watched.next()
    found = watched.data["job:a"]
    assert found["job"]["state"] == "done"
    rows = [(row["event"], row["worker"]) for row in found["timeline"]]
    assert [row for row in rows if row[0] in ("retried", "completed")] == [
        ("retried", "w"),
        ("completed", "w2"),
    ]
    assert all("started_at" in row for row in found["timeline"] if row["event"] == "retried")
    await engine.amend(JobFilter(ids=("a",)), Delete(), limit=1)
    await driver.poll()
    assert (await watched.next())[0] == "gone"


async def test_a_queue_with_its_stats_limits_and_tenants(driver: Driver) -> None:
    engine = driver.app.engine
    await engine.declare(Queue(name="mail", fairness="shares"))
    await driver.app.enqueue_many([driver.app.job("t", 1, queue="mail", tenant="acme")])
    watched = await driver.watch("queue:mail", "queue:none")
    await watched.next()
    assert (await watched.next())[1]["code"] == "unknown_queue"
    found = watched.data["queue:mail"]
    assert found["queue"]["ready"] == found["stats"]["ready"] == 1
    assert found["limits"] == {"limits": [], "slots": []}
    assert [each["tenant"] for each in found["tenants"]["tenants"]] == ["acme"]
    await engine.drop("mail")
    await driver.poll()
    assert (await watched.next())[0] == "gone"
    # It comes back for viewers that come later, and for those that are still there.
    await engine.declare(Queue(name="mail"))
    driver.now += 500
    later = await driver.watch("queue:mail")
    assert (await later.next())[0] == "snapshot"
    await driver.poll(5)
    assert (await watched.next())[0] == "snapshot"


async def test_a_queue_is_not_counted_twice(driver: Driver, store: Counted) -> None:
    watched = await driver.watch("overview", "queue:default")
    for _ in range(2):
        await watched.next()
    store.reads.clear()
    await driver.app.enqueue_many([driver.app.job("t", 1)])
    await driver.poll()
    assert (store.reads["counts"], store.reads["queues"]) == (1, 0)
    for _ in range(2):
        await watched.next()
    assert watched.data["queue:default"]["queue"]["ready"] == 1
    assert watched.data["overview"]["queues"]["default"]["ready"] == 1


async def test_a_subject_that_is_created_while_it_is_watched_is_shown(driver: Driver) -> None:
    watched = await driver.watch("queue:mail", "job:one")
    assert [(await watched.next())[0] for _ in range(2)] == ["gone", "gone"]
    # That they are still missing is no news.
    await driver.poll(5)
    assert (await watched.next())[0] == "tick"
    await driver.app.engine.declare(Queue(name="mail"))
    await driver.app.enqueue_many([driver.app.job("t", 1, id="one", queue="mail")])
    await driver.poll()
    assert [(await watched.next())[0] for _ in range(2)] == ["snapshot", "snapshot"]
    assert watched.data["queue:mail"]["queue"]["ready"] == 1
    assert watched.data["job:one"]["job"]["state"] == "waiting"


async def test_workers_and_redrives(driver: Driver) -> None:
    engine = driver.app.engine
    record = WorkerRecord(name="w", id="i", host="h", pid=1, started_at=0, capacity=4)
    await engine.save([WORKERS.record("w", record)])
    watched = await driver.watch("workers", "redrives")
    await watched.next()
    await watched.next()
    assert watched.data["workers"]["w"]["heartbeat_age_ms"] == 0
    assert watched.data["redrives"] == {}
    await driver.app.enqueue_many([driver.app.job("t", 1, id="d")])
    await engine.amend(JobFilter(ids=("d",)), BuryWaiting(), limit=1)
    redrives = Redrives(engine, wall_ms)
    started = await redrives.start(RedrivePlan(wanted=JobFilter(task="t")))
    await driver.poll()
    await watched.next()
    assert watched.data["redrives"][started.id]["state"] == "running"
    await redrives.cancel(started.id, "ann")
    await driver.poll()
    await watched.next()
    assert watched.data["redrives"][started.id]["state"] == "cancelled"
    await WORKERS.remove(engine, "w")
    await driver.poll()
    assert (await watched.next())[1]["patch"] == {"w": None}


async def test_a_redrive_that_ended_long_ago_is_left_out(driver: Driver) -> None:
    engine = driver.app.engine
    for minutes, name in ((90, "old"), (30, "new")):
        at = wall_ms() - minutes * 60_000
        redrives = Redrives(engine, lambda at=at: at)  # type: ignore[misc]
        started = await redrives.start(RedrivePlan(wanted=JobFilter(task=name)))
        await redrives.cancel(started.id, "ann")
    watched = await driver.watch("redrives")
    await watched.next()
    filters = [each["filter"] for each in watched.data["redrives"].values()]
    assert filters == [{"task": "new"}]


async def test_a_slow_viewer_gets_a_snapshot_instead_of_what_it_missed(driver: Driver) -> None:
    slow, quick = await driver.watch("overview"), await driver.watch("overview")
    await quick.next()
    for number in range(100):
        await driver.app.enqueue_many([driver.app.job("t", number)])
        await driver.poll()
        assert (await quick.next())[0] == "change"
    [channel] = driver.hub._watched.values()
    assert len(channel._ring) == stream._RING
    assert (await slow.next())[0] == "snapshot"
    assert slow.data["overview"]["queues"] == quick.data["overview"]["queues"]
    # It is a little behind now: the changes are still there.
    for number in range(3):
        await driver.app.enqueue_many([driver.app.job("t", number)])
        await driver.poll()
    assert [(await slow.next())[0] for _ in range(3)] == ["change"] * 3


async def test_large_changes_do_not_pile_up(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_RING_BYTES_MAX", 100_000)
    engine = driver.app.engine
    await engine.enqueue([NewJob(id="a", task="t")])
    [lease] = await engine.lease(LeaseRequest(queues=("default",)))
    slow = await driver.watch("job:a")
    await slow.next()
    for number in range(10):
        note = Note(output=b"%d" % number * 40_000)
        await engine.renew([Renewal(lease=lease, note=note)])
        await driver.poll()
    [channel] = driver.hub._watched.values()
    assert sum(map(len, channel._ring)) <= 100_000
    assert (await slow.next())[0] == "snapshot"
    assert slow.data["job:a"]["output"] == "9" * 40_000


async def test_data_goes_stale_while_the_store_is_away(
    driver: Driver, store: Counted, caplog: pytest.LogCaptureFixture
) -> None:
    watched = await driver.watch("overview")
    await watched.next()
    await driver.poll()
    store.down = True
    for _ in range(10):
        await driver.poll()
    assert caplog.text.count("live streams pause") == 1
    assert await watched.next() == ("tick", {"as_of": "2027-01-15T08:00:01Z"})
    with pytest.raises(EngineUnavailable):
        await driver.watch("workers")
    store.down = False
    await driver.app.enqueue_many([driver.app.job("t", 1)])
    await driver.poll()
    assert (await watched.next())[1]["as_of"] == "2027-01-15T08:00:12Z"


async def test_a_topic_that_cannot_be_read_does_not_hold_up_the_others(
    driver: Driver, store: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a job in a partition that is shut out."""
    await driver.app.enqueue_many([driver.app.job("t", 1, id="a")])
    watched = await driver.watch("job:a", "queue:default")
    await watched.next()
    await watched.next()

    async def get(_id: str) -> Job | None:
        raise EngineUnavailable("its partition is shut out")

    monkeypatch.setattr(store, "get", get)
    await driver.app.enqueue_many([driver.app.job("t", 1)])
    await driver.poll()
    name, body = await watched.next()
    assert (name, body["topic"]) == ("change", "queue:default")
    await driver.poll(5)
    assert await watched.next() == ("tick", {"as_of": "2027-01-15T08:00:00Z"})


async def test_a_topic_that_is_slow_to_read_rests(
    driver: Driver, store: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = await driver.watch("job:none", "workers")
    await watched.next()
    read = topics.read_topic

    async def slow(reads: Any, topic: str) -> Any:
        driver.now += 150
        return await read(reads, topic)

    monkeypatch.setattr(stream, "read_topic", slow)
    monkeypatch.setattr(stream, "_REST", 10)
    reads = []
    for _ in range(6):
        store.reads.clear()
        await driver.poll()
        reads.append(store.reads["worker"])
    assert reads == [1, 0, 1, 0, 1, 0]


async def test_the_progress_of_acts(driver: Driver) -> None:
    await driver.app.enqueue_many([driver.app.job("t", 1, id=f"j{n}") for n in range(3)])
    watched = await driver.watch("acts")
    assert (await watched.next())[1]["data"] == {}
    acts = Acts(driver.app.engine, wall_ms)
    act = await acts.count(ActPlan(act="cancel"), "ada")
    await driver.poll()
    _, change = await watched.next()
    assert change["patch"][act.id]["says"] == "Cancel 3 waiting jobs"
    await acts.run(act.id, "ada")
    await driver.poll()
    assert (await watched.next())[1]["patch"][act.id]["state"] == "running"


class Revised(Counted):
    """Knows whether anything was written, as SQLite does."""

    written = 0
    records_written = 0
    late = 0
    """Writes that do not show in the revision of the counts yet."""
    meanwhile: Callable[[], Awaitable[None]] | None = None
    """Called while the revision of the counts is read, once."""

    async def revision(self) -> str | None:
        self.reads["revision"] += 1
        return f"{self.written} {self.records_written}"

    async def count_revision(self) -> str | None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return str(self.written - self.late)


@pytest.fixture
async def revised() -> AsyncIterator[Driver]:
    async with Holdfast(engine=Revised()) as app:
        driver = Driver(app)
        yield driver
        await driver.close()


async def test_nothing_is_read_while_nothing_is_written(revised: Driver) -> None:
    store = revised.app.home.store
    assert isinstance(store, Revised)
    watched = await revised.watch("workers", "overview")
    await watched.next()
    await watched.next()
    await revised.poll()
    reads = []
    for _ in range(12):
        store.reads.clear()
        await revised.poll()
        assert store.reads["revision"] == 1
        reads.append(store.reads["worker"])
    # Data that changes with time is still read now and then.
    assert reads == [0, 0, 0, 0, 1] * 2 + [0, 0]
    await revised.app.enqueue_many([revised.app.job("t", 1)])
    store.written += 1
    await revised.poll()
    while (await watched.next())[0] != "change":
        pass
    assert watched.data["overview"]["queues"]["default"]["ready"] == 1
    assert watched.events[-1][1]["as_of"] == show_at(revised.now)


async def test_jobs_are_not_counted_because_of_records(revised: Driver) -> None:
    store = revised.app.home.store
    assert isinstance(store, Revised)
    watched = await revised.watch("overview")
    await watched.next()
    await revised.poll()
    store.reads.clear()
    alert = Alert(
        rule="disk_floor",
        about="host",
        severity="warn",
        unit="bytes",
        value=1,
        threshold=2,
        text="little room",
        raised_at=1,
        seen_at=1,
    )
    await store.save([ALERTS.record(alert.key, alert)])
    store.records_written += 1
    await revised.poll()
    assert (store.reads["counts"], store.reads["queues"]) == (0, 1)
    assert (await watched.next())[0] == "change"
    [problem] = watched.data["overview"]["attention"]
    assert problem["kind"] == "disk_floor"
    assert watched.events[-1][1]["as_of"] == show_at(revised.now)
    await revised.app.enqueue_many([revised.app.job("t", 1)])
    store.written += 1
    await revised.poll()
    assert store.reads["counts"] == 1
    await watched.next()
    assert watched.data["overview"]["queues"]["default"]["ready"] == 1
    # Counts that change with time alone are read now and then.
    for _ in range(5):
        store.records_written += 1
        await revised.poll()
    assert store.reads["counts"] == 2


async def test_one_slow_read_does_not_keep_counts(
    revised: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = revised.app.home.store
    assert isinstance(store, Revised)
    watched = await revised.watch("overview")
    await watched.next()
    read = topics.read_topic

    async def slow(reads: Any, topic: str) -> Any:
        revised.now += 750
        return await read(reads, topic)

    monkeypatch.setattr(stream, "read_topic", slow)
    store.written += 1
    await revised.poll()
    monkeypatch.setattr(stream, "read_topic", read)
    store.reads.clear()
    for _ in range(8):
        store.records_written += 1
        await revised.poll()
    assert store.reads["counts"] == 1


async def test_the_page_of_a_queue_does_not_use_old_counts(revised: Driver) -> None:
    store = revised.app.home.store
    assert isinstance(store, Revised)
    watched = await revised.watch("overview", "queue:default")
    await watched.next()
    await watched.next()
    await revised.poll()
    store.reads.clear()
    store.records_written += 1
    await revised.poll()
    assert store.reads["counts"] == 1


async def test_counts_that_were_read_while_a_change_was_looked_for_are_read_again(
    revised: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_UNCHANGED_S_MIN", 1_000)
    looks = count()

    def clock() -> float:
        return revised.now / 1000 + next(looks) / 1e6

    monkeypatch.setattr(metrics, "monotonic", clock)
    monkeypatch.setattr(revised.hub, "_ticks", clock)
    store, app = revised.app.home.store, revised.app
    assert isinstance(store, Revised)
    watched = await revised.watch("overview")
    await watched.next()
    await revised.poll()

    async def meanwhile() -> None:
        """A little later another viewer counts, and then there is a job."""
        revised.now += 100
        await snapshot_reader(app)._count(app)
        await app.enqueue_many([app.job("t", 1)])
        store.written += 1

    store.meanwhile = meanwhile
    store.records_written += 1
    await revised.poll()
    assert (await watched.next())[0] == "change"
    assert watched.data["overview"]["queues"]["default"]["ready"] == 1


async def test_a_change_of_counts_that_shows_late(
    revised: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_UNCHANGED_S_MIN", 100)
    store = revised.app.home.store
    assert isinstance(store, Revised)
    watched = await revised.watch("overview")
    await watched.next()
    await revised.poll()
    await revised.app.enqueue_many([revised.app.job("t", 1)])
    store.written, store.late = 1, 1
    await revised.poll()
    store.reads.clear()
    await revised.poll(8)
    assert store.reads["counts"] == 0
    store.late = 0
    await revised.poll()
    assert store.reads["counts"] == 1
    while (await watched.next())[0] != "change":
        pass
    assert watched.data["overview"]["queues"]["default"]["ready"] == 1
    store.reads.clear()
    await revised.poll(20)
    assert store.reads == {"revision": 1}


async def test_data_that_was_not_read_again_is_as_fresh_as_the_look(revised: Driver) -> None:
    watched = await revised.watch("workers")
    await watched.next()
    for _ in range(5):
        await revised.poll()
    assert await watched.next() == ("tick", {"as_of": show_at(revised.now)})


async def test_a_topic_that_rested_is_read_although_nothing_was_written_since(
    revised: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = revised.app.home.store
    assert isinstance(store, Revised)
    watched = await revised.watch("workers")
    await watched.next()
    read = topics.read_topic

    async def slow(reads: Any, topic: str) -> Any:
        revised.now += 150
        return await read(reads, topic)

    monkeypatch.setattr(stream, "read_topic", slow)
    monkeypatch.setattr(stream, "_REST", 10)
    reads = []
    for written in (1, 1, 0, 0, 0):
        store.written += written
        store.reads.clear()
        await revised.poll()
        reads.append(store.reads["worker"])
    assert reads == [1, 0, 1, 0, 0]


class SlowCounts(Revised):
    """Has so many jobs that it takes long to count them: until `counted` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = asyncio.Event()
        self.counted.set()

    async def queues(
        self, *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        found = await super().queues(names=names, counts=counts)
        if counts and names is None:
            await self.counted.wait()
        return found


async def test_nobody_waits_for_slow_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of settings is shown at once, and the counts when they are known. Then nothing is
    read until there is another change."""
    monkeypatch.setattr(metrics, "_SLOW_S", -1)
    monkeypatch.setattr(metrics, "_COUNT_REST", 0)
    store = SlowCounts()
    async with Holdfast(engine=store) as app:
        driver = Driver(app)
        looks = count()

        def clock() -> float:
            return driver.now / 1000 + next(looks) / 1e6

        monkeypatch.setattr(metrics, "monotonic", clock)
        monkeypatch.setattr(driver.hub, "_ticks", clock)
        await app.declare("mail")
        watched = await driver.watch("overview", "queue:mail")
        await watched.next()
        await watched.next()
        store.counted.clear()
        await app.enqueue_many([app.job("t", 1, queue="mail")])
        await pause_queue(app.engine, "mail", Pause(by="ada"))
        await app.declare("new")
        store.written += 1
        await driver.poll()
        await watched.next()
        await watched.next()
        queues = watched.data["overview"]["queues"]
        assert set(queues) == {"default", "mail", "new"}
        assert (queues["mail"]["paused"], queues["mail"]["ready"]) == (True, 0)
        assert watched.data["queue:mail"]["queue"]["ready"] == 1
        store.reads.clear()
        await driver.poll()
        # While the counts are awaited, nothing else is read again.
        assert store.reads == {"revision": 1}
        store.counted.set()
        counting = snapshot_reader(app)._counting
        assert counting is not None
        await counting
        await driver.poll()
        await watched.next()
        assert watched.data["overview"]["queues"]["mail"]["ready"] == 1
        store.reads.clear()
        await driver.poll()
        assert store.reads == {"revision": 1}
        await driver.close()


async def test_an_act_here_ends_a_rest(driver: Driver, store: Counted) -> None:
    watched = await driver.watch("workers")
    await watched.next()
    [channel] = driver.hub._watched.values()
    channel.rests_until = float("inf")
    store.reads.clear()
    await driver.poll()
    assert store.reads["worker"] == 0
    driver.loop.is_woken = True
    await driver.poll()
    assert store.reads["worker"] == 1


async def test_values_are_hidden_from_viewers_without_operate(driver: Driver) -> None:
    engine = driver.app.engine
    await save_setting(engine, "dashboard-redact", "secret")
    job = driver.app.job("t", 1, id="one", headers={"secret": "x", "plain": "y"})
    await driver.app.enqueue_many([job])
    hub = driver.hub
    hub._controls = AccessControls(redaction=Redaction(lambda: engine))
    shown = {}
    for scope in ("observe", "operate"):
        rights = Rights("", with_implied([scope]))
        watched = await driver.watch("job:one", rights=rights)
        shown[scope] = (await watched.next())[1]["data"]["job"]["headers"]
    assert shown["operate"] == {"secret": "x", "plain": "y"}
    assert shown["observe"] == {"secret": "[hidden]", "plain": "y"}


async def change_something(driver: Driver, draw: random.Random) -> None:
    engine = driver.app.engine
    match draw.randrange(6):
        case 0 | 1:
            queue = draw.choice(["mail", "default"])
            await driver.app.enqueue_many([driver.app.job("t", 1, queue=queue)])
        case 2:
            await engine.declare(Queue(name="mail", paused=draw.random() < 0.5))
        case 3:
            await engine.declare(Queue(name=f"more{draw.randrange(5)}"))
        case 4:
            await engine.drop(f"more{draw.randrange(5)}")
        case _:
            await engine.amend(JobFilter(queue="mail"), Cancel(), limit=1)


async def test_any_sequence_of_changes_ends_in_the_same_data(driver: Driver) -> None:
    draw = random.Random(11)
    three = ("overview", "queue:mail", "redrives")
    await driver.app.engine.declare(Queue(name="mail"))
    eager, lazy = await driver.watch(*three), await driver.watch(*three)
    for _ in three:
        await eager.next()
    for step in range(60):
        await change_something(driver, draw)
        await driver.poll()
        if step % 7 == 0:
            await eager.next()
    fresh = await driver.watch(*three)
    for viewer in (eager, lazy, fresh):
        # A tick comes once there is nothing else to send.
        while (await viewer.next())[0] != "tick":
            await driver.poll(5)
        viewer.data["overview"].pop("as_of")
    assert eager.data == lazy.data == fresh.data
    assert Counter(name for name, _ in eager.events)["change"] > 10


def some_data(draw: random.Random, depth: int = 0) -> Any:
    if depth < 3 and draw.random() < 0.5:
        return {
            name: some_data(draw, depth + 1) for name in draw.sample("abcde", draw.randrange(5))
        }
    return draw.choice([None, 0, 1, 2.5, "x", [1, None], [], True, {}])


def test_a_patch_leads_from_one_value_to_the_other() -> None:
    draw = random.Random(3)
    for _ in range(3_000):
        before, after = ({"a": some_data(draw), "b": some_data(draw)} for _ in range(2))
        patch = merge_patch(before, after)
        assert applied(without_nulls(before), patch) == without_nulls(after)
        assert not merge_patch(after, after)


@asynccontextmanager
async def live(serving: MeteredServer, *wanted: str, token: str = "") -> AsyncIterator[Watched]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with serving.client.stream(
        "GET", "/v1/live", params={"topic": wanted}, headers=headers
    ) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"] == "text/event-stream"
        yield Watched(answer.aiter_raw())


async def test_changes_arrive_over_http() -> None:
    async with metered_server(MemoryEngine()) as serving, live(serving, "overview") as watched:
        assert (await watched.next())[0] == "snapshot"
        await serving.work(3)
        await live_hub(serving.app).poll()
        await watched.next()
        assert watched.data["overview"]["queues"]["default"]["done"] == 3


async def test_an_act_through_the_server_is_shown_at_once() -> None:
    """The loop would otherwise poll in an hour."""
    async with metered_server(MemoryEngine()) as serving:
        poll_loop(serving.app).poll_s = 3_600
        async with live(serving, "queue:default") as watched:
            await watched.next()
            for act, paused in (("pause", True), ("resume", False)):
                answer = await serving.client.post(f"/v1/queues/default/{act}", json={})
                assert answer.status_code == 200
                await watched.next()
                assert watched.data["queue:default"]["queue"]["paused"] is paused


async def test_both_kinds_of_streams_share_one_loop() -> None:
    async with metered_server(MemoryEngine()) as serving:
        loop = poll_loop(serving.app)
        loop.poll_s = 3_600
        async with live(serving, "workers") as watched:
            await watched.next()
            task = loop.task
            async with serving.client.stream("GET", "/v1/events") as events:
                await anext(events.aiter_raw())
                assert loop.task is task
                assert loop._joined.total() == 2


@pytest.mark.parametrize(
    "wanted",
    [
        [],
        ["gossip"],
        ["queue:"],
        ["queue:no such name!"],
        ["job:"],
        ["job:" + "x" * 129],
        ["overview "],
        ["overview:x"],
        ["tokens"],
        [f"queue:q{number}" for number in range(21)],
    ],
)
async def test_invalid_topics_are_refused(wanted: list[str]) -> None:
    async with metered_server(MemoryEngine()) as serving:
        answer = await serving.client.get("/v1/live", params={"topic": wanted})
        assert answer.status_code == 400, answer.text


async def test_a_stream_over_http_ends_with_its_token() -> None:
    async with metered_server(MemoryEngine(), ServerSettings(auth=True)) as serving:
        assert (
            await serving.client.get("/v1/live", params={"topic": "overview"})
        ).status_code == 401
        tokens = serving.server.tokens
        texts = {}
        for scope in ("observe", "consume"):
            texts[scope], _ = await tokens.create(TokenRequest(name=scope, scopes=(scope,)))
        refused = await serving.client.get(
            "/v1/live",
            params={"topic": "overview"},
            headers={"Authorization": f"Bearer {texts['consume']}"},
        )
        assert refused.status_code == 403
        async with live(serving, "workers", token=texts["observe"]) as watched:
            await watched.next()
            await tokens.revoke("observe")
            # Nothing has changed, and still it ends.
            await live_hub(serving.app).poll()
            with pytest.raises(StopAsyncIteration):
                await watched.next()


async def test_a_prefix_sees_only_its_subjects_over_http() -> None:
    async with metered_server(MemoryEngine(), ServerSettings(auth=True)) as serving:
        await serving.app.engine.declare(Queue(name="secret"))
        await serving.app.enqueue_many([serving.app.job("t", 1, queue="secret", id="hidden")])
        wanted = TokenRequest(name="mail", scopes=("observe",), prefix="mail")
        text, _ = await serving.server.tokens.create(wanted)
        async with live(serving, "queue:secret", "job:hidden", "overview", token=text) as watched:
            assert [(await watched.next())[0] for _ in range(3)] == ["gone", "gone", "snapshot"]
            assert watched.data["overview"]["queues"] == {}
