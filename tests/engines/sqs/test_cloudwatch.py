"""CloudWatch beside SQS: ages and arrivals where they are permitted, and never a failure."""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError

from holdfast.app.application import Holdfast
from holdfast.core.model import NewJob
from holdfast.core.scaling import Goal
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.sqs import cloudwatch
from holdfast.engines.sqs.cloudwatch import CloudWatchReader, CloudWatchSink
from holdfast.engines.sqs.engine import SqsEngine
from holdfast.errors import ConfigError, EngineUnavailable
from holdfast.ops.scaling import read_scaling
from holdfast.ops.status import read_status
from holdfast.process import wall_ms
from holdfast.server.application import AsgiApplication
from holdfast.server.settings import ServerSettings
from holdfast.server.state import ServerState
from holdfast.telemetry.accounts import Flusher
from holdfast.telemetry.snapshots import Roller
from holdfast.testing.clock import ManualClock
from holdfast.testing.sqs import REGION
from tests.engines.sqs import servers
from tests.server.loop_server import LoopServer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("aws")]

DENIED = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetMetricData")


class FakeCloudWatch:
    """boto3's client: answers with the values of each queue, or raises."""

    def __init__(self, **values: list[float]) -> None:
        self.values = values
        self.error: Exception | None = None
        self.requests: list[list[str]] = []

    def get_metric_data(self, **asked: Any) -> dict[str, Any]:
        queries = asked["MetricDataQueries"]
        names = [each["MetricStat"]["Metric"]["Dimensions"][0]["Value"] for each in queries]
        self.requests.append(names)
        if self.error is not None:
            raise self.error
        found = [
            {"Id": query["Id"], "Values": self.values.get(name, [])}
            for query, name in zip(queries, names, strict=True)
        ]
        return {"MetricDataResults": found}

    def close(self) -> None:
        """Nothing is open."""


class Reading:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake = FakeCloudWatch()
        self.now_s = 1_000.0
        monkeypatch.setattr(cloudwatch._CloudWatchClient, "_make", lambda _: self.fake)
        self.reader = CloudWatchReader(REGION, None, clock_s=lambda: self.now_s)


@pytest.fixture
async def reading(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Reading]:
    found = Reading(monkeypatch)
    yield found
    await found.reader.close()


async def test_the_latest_age_is_kept_for_a_minute(reading: Reading) -> None:
    reading.fake.values = {"mail": [90.5, 30.0]}
    for _ in range(3):
        assert await reading.reader.ages_ms(["mail", "new"]) == {"mail": 90_500}
    assert reading.fake.requests == [["mail", "new"]]
    reading.now_s += cloudwatch.FRESH_S
    reading.fake.values = {"mail": [20.0]}
    assert await reading.reader.ages_ms(["mail"]) == {"mail": 20_000}
    assert len(reading.fake.requests) == 2


async def test_an_age_from_when_the_queue_was_empty_is_unknown(reading: Reading) -> None:
    reading.fake.values = {"mail": [0.0, 30.0]}
    assert await reading.reader.ages_ms(["mail"]) == {}


async def test_arrivals_are_the_mean_of_whole_minutes(reading: Reading) -> None:
    reading.fake.values = {"mail": [120.0, 0.0, 60.0]}
    assert await reading.reader.arrivals(["mail", "idle"]) == {"mail": 1.0}


async def test_a_denied_right_is_named_once_and_the_age_stays_unknown(
    reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    reading.fake.error = DENIED
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert await reading.reader.ages_ms(["mail"]) == {}
            assert await reading.reader.ages_ms(["mail"]) == {}
            reading.now_s += cloudwatch.FAILED_S
    assert len(reading.fake.requests) == 3, "it is not asked again within a minute"
    [line] = caplog.messages
    assert "allow the action cloudwatch:GetMetricData in the IAM policy" in line
    assert "policy of the queue" not in line
    reading.fake.error, reading.fake.values = None, {"mail": [5.0]}
    assert await reading.reader.ages_ms(["mail"]) == {"mail": 5_000}


async def test_an_old_age_is_not_shown_while_cloudwatch_is_unreachable(reading: Reading) -> None:
    reading.fake.values = {"mail": [90.0]}
    assert await reading.reader.ages_ms(["mail"]) == {"mail": 90_000}
    reading.now_s += cloudwatch.FRESH_S
    reading.fake.error = ConnectTimeoutError(endpoint_url="https://monitoring")
    assert await reading.reader.ages_ms(["mail"]) == {}


@pytest.mark.parametrize("hostile", [float("nan"), float("inf"), -1.0, 1e300])
async def test_a_value_that_is_none_is_left_out(reading: Reading, hostile: float) -> None:
    reading.fake.values = {"mail": [hostile, 7.0], "bad": [hostile]}
    assert await reading.reader.ages_ms(["mail", "bad"]) == {"mail": 7_000}


async def test_a_read_is_bounded_and_nobody_waits_long(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"q{number}" for number in range(cloudwatch.NAMES_MAX + 5)]
    reading.fake.values = {name: [1.0] for name in names}
    assert len(await reading.reader.ages_ms(names)) == cloudwatch.NAMES_MAX
    assert {len(each) for each in reading.fake.requests} == {cloudwatch.QUERIES_MAX}

    async def hang(*_: object, **__: object) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(cloudwatch._CloudWatchClient, "ask", hang)
    monkeypatch.setattr(cloudwatch, "WAIT_S", 0.01)
    assert await reading.reader.arrivals(["q1"]) == {}


@pytest.mark.parametrize(
    ("sqs", "variable", "expected"),
    [
        (None, "", None),
        ("http://127.0.0.1:7433", "", "http://127.0.0.1:7433"),
        ("https://vpce-1.sqs.eu-west-1.vpce.amazonaws.com", "", None),
        ("http://127.0.0.1:7433", "http://127.0.0.1:1", None),
    ],
)
def test_the_endpoint_of_cloudwatch_is_that_of_an_emulator_only(
    monkeypatch: pytest.MonkeyPatch, sqs: str | None, variable: str, expected: str | None
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH", variable)
    assert cloudwatch._endpoint_of(sqs) == expected


async def test_ages_and_arrivals_of_our_own_endpoint(clock: ManualClock, tmp_path: Path) -> None:
    """Sent two minutes ago, and still there."""
    server = LoopServer()
    async with Holdfast(engine=MemoryEngine(clock=clock)) as app:
        server.only_app = AsgiApplication(ServerState(app=app, settings=ServerSettings(auth=False)))
        async with server.running():
            control = Holdfast(f"sqlite:///{tmp_path}/control.db").home.store
            engine = SqsEngine(REGION, "t-", endpoint=server.place, create=True, control=control)
            await engine.open()
            roller_ms = wall_ms() - 180_000
            flusher = Flusher(app.engine, app.telemetry.meter, "server", wall_ms)
            app.listeners.add(app.telemetry.meter.record)
            await Roller(app.engine, lambda: roller_ms).once()
            await engine.enqueue([NewJob(id=f"{number:032x}", task="t") for number in range(6)])
            clock.advance(95_000)
            await flusher.flush()
            roller_ms += 60_000
            await Roller(app.engine, lambda: roller_ms).once()
            [view] = await engine.queues(names=["default"])
            assert (view.ready, view.oldest_age_ms, view.is_age_unknown) == (6, 95_000, False)
            assert (view.deleted_after_ms, view.leased_max) == (10 * 86_400_000, 120_000)
            assert await engine.arrivals(["default"]) == {"default": 0.1}
            [found] = await read_scaling(engine, "default", Goal(), now=wall_ms())
            assert (found.load.oldest_age_ms, found.advice.workers) == (95_000, 1)
            status = await read_status(engine)
            assert ([each.oldest_age_ms for each in status.queues], status.failed) == (
                [95_000],
                None,
            )
            assert status.failed_more
            await engine.close()


async def test_an_emulator_without_these_metrics_leaves_the_age_unknown(moto: str) -> None:
    engine = SqsEngine(REGION, f"t{uuid4().hex[:8]}-", endpoint=moto, create=True)
    await engine.open()
    await engine.enqueue([NewJob(id=uuid4().hex, task="t")])
    [view] = await engine.queues(names=["default"])
    assert (view.ready, view.oldest_age_ms, view.is_age_unknown) == (1, None, True)
    assert await engine.arrivals(["default"]) == {}
    await engine.close()


@pytest.fixture
def environment(moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH", moto)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setattr("boto3.session.Session", servers.SESSION)


@pytest.mark.usefixtures("environment")
async def test_metrics_are_published_in_batches(moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloudwatch, "DATA_MAX", 2)
    namespace = f"Holdfast/{uuid4().hex[:8]}"
    sink = CloudWatchSink(namespace)
    await sink.put(
        {
            "mail": {"Ready": 7, "OldestAge": 1.5, "DesiredWorkers": 2},
            "idle": {"Ready": 0, "DesiredWorkers": 0},
        }
    )
    sink.close()
    client = servers.session().client("cloudwatch", region_name=REGION, endpoint_url=moto)

    def latest(metric: str, queue: str) -> list[tuple[float, str]]:
        now = datetime.now(UTC)
        found = client.get_metric_statistics(
            Namespace=namespace,
            MetricName=metric,
            Dimensions=[{"Name": "QueueName", "Value": queue}],
            StartTime=now - timedelta(minutes=5),
            EndTime=now + timedelta(minutes=1),
            Period=60,
            Statistics=["Maximum"],
        )
        return [(each["Maximum"], each["Unit"]) for each in found["Datapoints"]]

    assert await asyncio.to_thread(latest, "Ready", "mail") == [(7, "Count")]
    assert await asyncio.to_thread(latest, "OldestAge", "mail") == [(1.5, "Seconds")]
    assert await asyncio.to_thread(latest, "DesiredWorkers", "idle") == [(0, "Count")]
    assert await asyncio.to_thread(latest, "OldestAge", "idle") == []


async def test_the_region_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)
    with pytest.raises(ConfigError, match="set AWS_REGION"):
        await CloudWatchSink("Holdfast").put({"mail": {"Ready": 1}})


async def test_an_endpoint_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setattr("boto3.session.Session", servers.SESSION)
    with pytest.raises(EngineUnavailable, match="Amazon CloudWatch"):
        await CloudWatchSink("Holdfast").put({"mail": {"Ready": 1}})


@pytest.mark.parametrize("wrong", ["", "AWS/SQS", "a b", "x" * 256])
def test_an_invalid_namespace_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="CloudWatch namespace"):
        CloudWatchSink(wrong)
