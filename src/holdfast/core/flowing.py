"""Is what a queue says about its flow within bounds? Its limits, its fairness and its weights."""

from __future__ import annotations

import re

from holdfast.core import limits
from holdfast.core.flow import Limit, Rate
from holdfast.core.lanes import fields_of
from holdfast.core.model import Queue
from holdfast.errors import InvalidQueue

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def check_flow(queue: Queue) -> None:
    """Raise InvalidQueue with the value and the bound."""
    if queue.fairness not in ("off", "shares", "noisy"):
        raise InvalidQueue(f"fairness {queue.fairness!r} is not off, shares or noisy")
    if len(queue.limits) > limits.LIMITS_MAX:
        raise InvalidQueue(f"{len(queue.limits)} limits; the bound is {limits.LIMITS_MAX}")
    if len(queue.weights) > limits.WEIGHTS_MAX:
        raise InvalidQueue(f"{len(queue.weights)} weights; the bound is {limits.WEIGHTS_MAX}")
    for tenant, weight in queue.weights.items():
        if _UNSTORABLE.search(tenant):
            raise InvalidQueue(f"tenant {tenant[:80]!r} of weights has a NUL or a lone surrogate")
        if not 1 <= weight <= limits.WEIGHT_MAX:
            raise InvalidQueue(
                f"weight {weight} of tenant {tenant[:80]!r} is not 1 to {limits.WEIGHT_MAX}"
            )
    names = [limit.name for limit in queue.limits]
    for limit in queue.limits:
        if names.count(limit.name) > 1:
            raise InvalidQueue(f"queue {queue.name} has two limits of the name {limit.name}")
        check_limit(limit)


def check_limit(limit: Limit) -> None:
    if not limits.TASK_NAME.match(limit.name):
        raise InvalidQueue(
            f"limit name {limit.name[:80]!r} is not 1 to 200 of A-Z a-z 0-9 _ . : / -"
        )
    if limit.task is not None and not limits.TASK_NAME.match(limit.task):
        raise InvalidQueue(f"limit {limit.name}: task {limit.task[:80]!r} is no task's name")
    if len(limit.key.encode(errors="replace")) > limits.NAME_BYTES_MAX:
        raise InvalidQueue(f"limit {limit.name}: key is over {limits.NAME_BYTES_MAX} bytes")
    if _UNSTORABLE.search(limit.key):
        raise InvalidQueue(f"limit {limit.name}: key has a NUL or a lone surrogate")
    fields_of(limit.key)
    if limit.concurrency is None and limit.rate is None:
        raise InvalidQueue(f"limit {limit.name} bounds nothing: give it a concurrency or a rate")
    if limit.concurrency is not None and not 1 <= limit.concurrency <= limits.SLOTS_MAX:
        raise InvalidQueue(
            f"limit {limit.name}: concurrency {limit.concurrency} is not 1 to {limits.SLOTS_MAX};"
            " to stop a queue, pause it"
        )
    if limit.rate is not None:
        _check_rate(limit.name, limit.rate)


def _check_rate(name: str, rate: Rate) -> None:
    if not 1 <= rate.count <= limits.RATE_COUNT_MAX:
        raise InvalidQueue(
            f"limit {name}: rate {rate.count} is not 1 to {limits.RATE_COUNT_MAX};"
            " to stop a queue, pause it"
        )
    if not 1 <= rate.per_ms <= limits.DAY_MS:
        raise InvalidQueue(
            f"limit {name}: a rate per {rate.per_ms} ms is not per 1 to {limits.DAY_MS}"
        )
    if not 1 <= rate.burst <= limits.RATE_COUNT_MAX:
        raise InvalidQueue(f"limit {name}: burst {rate.burst} is not 1 to {limits.RATE_COUNT_MAX}")
