"""Metrics: names, dimensions, batches, and the file for Prometheus."""

from pathlib import Path

import pytest

from holdfast_fleet import metrics
from holdfast_fleet.metrics import Metric, PrometheusFile
from holdfast_fleet.model import PoolReport, parse_termination
from tests.fleet.samples import termination


def test_a_success() -> None:
    assert metrics.of_termination(parse_termination(termination())) == [
        Metric("JobDuration", 123, "Seconds", {"Status": "completed"}),
        Metric("JobSuccess", 1),
    ]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"status": "failure", "error": "boom: job 42 of i-0abc"}, "boom"),
        ({"status": "failure", "error": "exit 137 after 12s\nmore"}, "exit # after #s"),
        ({"status": "failure", "error": "Ünïcode"}, "?n?code"),
        ({"status": "failure", "error": " : "}, "unknown"),
        ({"status": "failure"}, "unknown"),
        ({"status": "failure", "error": "x" * 5000}, "x" * 60),
        ({"status": "timeout", "error": "any"}, "timeout"),
        ({"status": "interrupted"}, "interrupted"),
    ],
)
def test_a_failure_has_one_of_few_kinds(changes: dict[str, str], kind: str) -> None:
    failure = metrics.of_termination(parse_termination(termination(**changes)))[1]
    assert failure == Metric("JobFailure", 1, "Count", {"Error": kind})


def test_an_unknown_value_has_no_metric() -> None:
    known = PoolReport(pool="blue", hours=24, idle_cost=1.5, compute_cost=0, utilization=0.25)
    assert metrics.of_pools([known, PoolReport(pool="red", hours=24, compute_cost=2)]) == [
        Metric("PoolIdleCost", 1.5, "None", {"PoolName": "blue"}),
        Metric("PoolComputeCost", 0, "None", {"PoolName": "blue"}),
        Metric("PoolUtilization", 25, "Percent", {"PoolName": "blue"}),
        Metric("PoolComputeCost", 2, "None", {"PoolName": "red"}),
    ]


def test_requests_are_batches() -> None:
    sizes = [
        len(each["MetricData"])
        for each in metrics.put_requests([Metric("JobSuccess", 1)] * (metrics.DATA_MAX + 1))
    ]
    assert sizes == [metrics.DATA_MAX, 1]
    assert list(metrics.put_requests([])) == []


def test_the_file_for_prometheus(tmp_path: Path) -> None:
    file = PrometheusFile(tmp_path / "fleet.prom")
    done = metrics.of_termination(parse_termination(termination()))
    file.add(done)
    file.add(done)
    cost = PoolReport(pool='b"lue', hours=24, idle_cost=1, utilization=0.5)
    file.add(metrics.of_pools([cost]))
    file.add([*metrics.of_pools([cost]), Metric("SSMParametersDeleted", 3)])
    assert (tmp_path / "fleet.prom").read_text() == (
        "# TYPE runs_fleet_job_duration_seconds summary\n"
        'runs_fleet_job_duration_seconds_count{status="completed"} 2.0\n'
        'runs_fleet_job_duration_seconds_sum{status="completed"} 246.0\n'
        "# TYPE runs_fleet_job_success_total counter\n"
        "runs_fleet_job_success_total 2.0\n"
        "# TYPE runs_fleet_pool_idle_cost_dollars gauge\n"
        'runs_fleet_pool_idle_cost_dollars{pool_name="b\\"lue"} 1.0\n'
        "# TYPE runs_fleet_pool_utilization_ratio gauge\n"
        'runs_fleet_pool_utilization_ratio{pool_name="b\\"lue"} 0.5\n'
        "# TYPE runs_fleet_ssm_parameters_deleted_total counter\n"
        "runs_fleet_ssm_parameters_deleted_total 3.0\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["fleet.prom"]
