"""What several partitions can do together: what each of them can, less what would count apart."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.model import Queue
from holdfast.engines.base import Traits
from holdfast.errors import Unsupported

NAME = "partitioned"


def common_traits(each: Sequence[Traits]) -> Traits:
    one = len(each) == 1
    return Traits(
        name=NAME,
        durable=all(traits.durable for traits in each),
        shared=all(traits.shared for traits in each),
        inspect=all(traits.inspect for traits in each),
        priority=all(traits.priority for traits in each),
        keys=all(traits.keys for traits in each),
        renew=all(traits.renew for traits in each),
        fencing=all(traits.fencing for traits in each),
        groups=all(traits.groups for traits in each),
        dependencies=all(traits.dependencies for traits in each),
        rates=one and each[0].rates,
        ordered=one and each[0].ordered,
        delay_ms_max=min(traits.delay_ms_max for traits in each),
        batch_max=min(traits.batch_max for traits in each),
        payload_max=min(traits.payload_max for traits in each),
    )


def check_queue(queue: Queue, count: int) -> None:
    """Raise Unsupported for what each partition would count by itself, and so allow `count`
    times."""
    if count == 1:
        return
    for feature, wanted in (
        ("limits", bool(queue.limits)),
        ("fairness", queue.fairness != "off"),
        ("max_depth", queue.max_depth is not None),
    ):
        if wanted:
            raise Unsupported(
                NAME,
                f"{feature} over {count} partitions, which each would count by itself; queue"
                f" {queue.name} can have it in one store",
            )
