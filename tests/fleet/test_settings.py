"""Settings: everything that is missing or wrong is said at once, and no secret is repeated."""

from pathlib import Path

import pytest

from holdfast import ConfigError
from holdfast_fleet.settings import FleetSettings

AWS = "https://sqs.eu-west-1.amazonaws.com/123456789012"
GOOD = {
    "RUNS_FLEET_TERMINATION_QUEUE_URL": f"{AWS}/runs-fleet-termination",
    "RUNS_FLEET_HOUSEKEEPING_QUEUE_URL": f"{AWS}/runs-fleet-housekeeping",
    "RUNS_FLEET_JOBS_TABLE": "runs-fleet-jobs",
    "RUNS_FLEET_POOLS_TABLE": "runs-fleet-pools",
}


def read(**changes: str) -> FleetSettings:
    named = {f"RUNS_FLEET_{name}": value for name, value in changes.items()}
    return FleetSettings.from_environment({**GOOD, **named})


def test_the_defaults() -> None:
    settings = read()
    assert (settings.termination_queue, settings.housekeeping_queue) == (
        "termination",
        "housekeeping",
    )
    assert (settings.region, settings.termination.endpoint) == ("eu-west-1", None)
    assert settings.max_runtime_s == 6 * 3600
    assert settings.engine_url("sqlite:///a.db") == (
        "sqs://eu-west-1/runs-fleet-?control=sqlite%3A%2F%2F%2Fa.db"
    )


def test_the_names_of_queues() -> None:
    """The common beginning is a prefix; a dot is written as two underscores."""
    settings = read(TERMINATION_QUEUE_URL=f"{AWS}/a__b", HOUSEKEEPING_QUEUE_URL=f"{AWS}/a-c")
    assert (settings.prefix, settings.termination_queue) == ("", "a.b")
    settings = read(TERMINATION_QUEUE_URL=f"{AWS}/ab-x-t", HOUSEKEEPING_QUEUE_URL=f"{AWS}/ab-xy")
    assert (settings.prefix, settings.housekeeping_queue) == ("ab-", "xy")


def test_all_settings(tmp_path: Path) -> None:
    settings = read(
        MAX_RUNTIME="90m",
        PRICES='{"gb_month": 0.08, "hourly": {"t4g.medium": 0.0336}}',
        ARCHIVE=str(tmp_path),
        METRICS_FILE=str(tmp_path / "fleet.prom"),
    )
    assert (settings.max_runtime_s, settings.prices.gb_month) == (5400, 0.08)
    assert settings.archive == tmp_path


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        FleetSettings.from_environment(
            {
                "RUNS_FLEET_TERMINATION_QUEUE_URL": "https://me:hush@host/queue",
                "RUNS_FLEET_MAX_RUNTIME": "soon",
                "RUNS_FLEET_PRICES": '{"gb_month": "cheap"}',
                "RUNS_FLEET_ARCHIVE": "/no/such/folder",
            }
        )
    text = str(caught.value)
    for name in (*GOOD, "RUNS_FLEET_MAX_RUNTIME", "RUNS_FLEET_PRICES", "RUNS_FLEET_ARCHIVE"):
        assert name in text
    assert "hush" not in text


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:4566/000000000000/q", ("q", "eu-north-1", "http://127.0.0.1:4566")),
        ("http://[::1]:80/0/q__eu", ("q__eu", "eu-north-1", "http://[::1]:80")),
        (f"{AWS}/q", ("q", "eu-west-1", None)),
    ],
)
def test_a_queue_url(url: str, expected: tuple[str, str, str | None]) -> None:
    other = url.rpartition("/")[0] + "/other"
    settings = FleetSettings.from_environment(
        {
            **GOOD,
            "RUNS_FLEET_TERMINATION_QUEUE_URL": url,
            "RUNS_FLEET_HOUSEKEEPING_QUEUE_URL": other,
            "AWS_REGION": "eu-north-1",
        }
    )
    assert settings.termination == expected


@pytest.mark.parametrize("name", ["a.fifo", "a-dlq", "a___b", "", "x" * 77, "a b"])
def test_a_queue_that_cannot_be_consumed(name: str) -> None:
    with pytest.raises(ConfigError, match="RUNS_FLEET_TERMINATION_QUEUE_URL: expected a queue URL"):
        read(TERMINATION_QUEUE_URL=f"{AWS}/{name}")


def test_two_queues_of_one_region() -> None:
    with pytest.raises(ConfigError, match="both queue URLs name"):
        read(HOUSEKEEPING_QUEUE_URL=f"{AWS}/runs-fleet-termination")
    with pytest.raises(ConfigError, match="different regions"):
        read(HOUSEKEEPING_QUEUE_URL="https://sqs.us-east-1.amazonaws.com/1/q")
