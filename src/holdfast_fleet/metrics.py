"""Metrics of the fleet: their names and dimensions, for CloudWatch and for Prometheus."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast_fleet.model import PoolReport, Termination

NAMESPACE: Final = "RunsFleet"
DATA_MAX: Final = 1_000
"""The most that one PutMetricData takes."""
_ERROR_MAX: Final = 60
_VARYING: Final = re.compile(r"[0-9a-fA-F]*[0-9][0-9a-fA-F]*")


class Metric(msgspec.Struct, frozen=True):
    """One value of a metric. The unit is one of CloudWatch's."""

    name: str
    value: float
    unit: str = "Count"
    dimensions: dict[str, str] = {}


def of_termination(message: Termination) -> list[Metric]:
    """The duration by the status of the record, and a success or a failure."""
    found = [
        Metric(
            "JobDuration", message.duration_seconds, "Seconds", {"Status": message.record_status}
        )
    ]
    if message.status == "success":
        found.append(Metric("JobSuccess", 1))
    else:
        found.append(Metric("JobFailure", 1, "Count", {"Error": error_kind(message)}))
    return found


def of_pools(reports: Sequence[PoolReport]) -> list[Metric]:
    """The metrics of an audit. An unknown value has no metric; it is never 0."""
    found: list[Metric] = []
    for each in reports:
        share = None if each.utilization is None else each.utilization * 100
        for name, value, unit in (
            ("PoolIdleCost", each.idle_cost, "None"),
            ("PoolComputeCost", each.compute_cost, "None"),
            ("PoolUtilization", share, "Percent"),
        ):
            if value is not None:
                found.append(Metric(name, value, unit, {"PoolName": _dimension(each.pool)}))
    return found


def error_kind(message: Termination) -> str:
    """The error in few words. CloudWatch charges for every value of a dimension, so ids, numbers
    and details are left out; a timeout or an interruption is its own kind."""
    if message.status != "failure":
        return message.status
    line = (message.error or "").strip().partition("\n")[0].partition(":")[0]
    return _dimension(" ".join(_VARYING.sub("#", line).split())[:_ERROR_MAX].strip())


def _dimension(text: str) -> str:
    """A value that CloudWatch takes: ASCII, not empty, not beginning with a colon."""
    plain = "".join(char if " " <= char <= "~" else "?" for char in text).strip().lstrip(":")
    return plain[:250] or "unknown"


def put_requests(metrics: Sequence[Metric]) -> Iterator[dict[str, Any]]:
    """The arguments of each PutMetricData."""
    for start in range(0, len(metrics), DATA_MAX):
        yield {
            "Namespace": NAMESPACE,
            "MetricData": [
                {
                    "MetricName": each.name,
                    "Value": each.value,
                    "Unit": each.unit,
                    "Dimensions": [
                        {"Name": name, "Value": value} for name, value in each.dimensions.items()
                    ],
                }
                for each in metrics[start : start + DATA_MAX]
            ],
        }


class PrometheusFile:
    """The same metrics in a file of Prometheus' text format, for the textfile collector of the node
    exporter. Counts are those of this process since it started. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], float] = {}

    def add(self, metrics: Sequence[Metric]) -> None:
        """Add to the counts, replace the costs and shares, and write the file anew."""
        with self._lock:
            for each in metrics:
                for name, value in _series(each):
                    key = (name, _labels(each))
                    # Costs and shares are of the last audit; everything else adds up.
                    before = 0.0 if each.name.startswith("Pool") else self._values.get(key, 0.0)
                    self._values[key] = before + value
            beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            beside.write_text(self.text(), encoding="ascii")
            beside.replace(self._path)

    def text(self) -> str:
        """The content of the file."""
        lines: list[str] = []
        last = ""
        for (name, labels), value in sorted(self._values.items()):
            family = name.removesuffix("_sum").removesuffix("_count")
            if family != last:
                lines.append(f"# TYPE {family} {_type(name)}")
                last = family
            lines.append(f"{name}{labels} {float(value)!r}")
        return "".join(f"{line}\n" for line in lines)


def _series(metric: Metric) -> list[tuple[str, float]]:
    name = "runs_fleet_" + _snake(metric.name)
    if metric.name == "JobDuration":
        return [(f"{name}_seconds_sum", metric.value), (f"{name}_seconds_count", 1)]
    if metric.name == "PoolUtilization":
        return [(f"{name}_ratio", metric.value / 100)]
    if metric.name.startswith("Pool"):
        return [(f"{name}_dollars", metric.value)]
    return [(f"{name}_total", metric.value)]


def _type(name: str) -> str:
    if name.endswith("_total"):
        return "counter"
    return "summary" if name.endswith(("_sum", "_count")) else "gauge"


def _labels(metric: Metric) -> str:
    pairs = [
        f'{_snake(name)}="{value.translate(_ESCAPES)}"'
        for name, value in sorted(metric.dimensions.items())
    ]
    return f"{{{','.join(pairs)}}}" if pairs else ""


_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _snake(name: str) -> str:
    """JobDuration → job_duration, SSMParametersDeleted → ssm_parameters_deleted."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
