"""The jobs that a tortured process makes: plain ones, and those that bound each other."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from msgspec.structs import replace

from holdfast.core.model import Lease, NewJob, Receipt, Status
from torture.queues import FLOWING, GROUPED, PLAIN, TENANTS

FAMILY_SHARE = 0.25
LATELY_MAX = 30
GROUPS = 12
HOLDING = "aged"
"""Only there may a job wait until the storm is over: it stops no group, and fills no queue."""


class Maker:
    """`name` begins every id. It knows jobs of others too, once somebody told it of them. Payloads
    are any bytes, or `in_json`."""

    def __init__(self, name: str, dice: random.Random, *, in_json: bool = False) -> None:
        self._name = name
        self._in_json = in_json
        self._dice = dice
        self._made = 0
        self._lately: deque[str] = deque(maxlen=LATELY_MAX)

    @property
    def lately(self) -> list[str]:
        """Ids of jobs that are, or were a moment ago."""
        return list(self._lately)

    def saw(self, leases: list[Lease]) -> None:
        self._lately.extend(lease.id for lease in leases)

    def answered(self, receipts: list[Receipt]) -> int:
        """How many came in."""
        new = [receipt.id for receipt in receipts if receipt.status is Status.NEW]
        self._lately.extend(new)
        return len(new)

    def batch(self) -> list[NewJob]:
        """Jobs for one call. Its first may be the parent of all others, its last their child."""
        dice = self._dice
        # Mostly of two queues: a call that is about all of them waits for all others.
        queues = [dice.choice(PLAIN), dice.choice(FLOWING)]
        if dice.random() < 0.1:
            queues = [*PLAIN, *FLOWING]
        jobs = [self._job(dice.choice(queues)) for _ in range(dice.choice((1, 1, 3, 10)))]
        roll = dice.random()
        if len(jobs) > 1 and roll < 0.15:
            first, *others = jobs
            jobs = [first, *(self._child(job, [first.id]) for job in others)]
        elif len(jobs) > 1 and roll < 0.3:
            *others, last = jobs
            jobs = [*others, self._child(last, [job.id for job in others])]
            # A parent may stand behind its child.
            dice.shuffle(jobs)
        return jobs

    def _job(self, queue: str) -> NewJob:
        dice = self._dice
        self._made += 1
        id_ = f"{self._name}-{self._made}"
        keyed = dice.random() < 0.1
        job = NewJob(
            id=id_,
            task="torture",
            queue=queue,
            payload=self._payload(id_, dice.randbytes(dice.choice((10, 200, 3_000)))),
            priority=dice.choice((0, 0, 0, 1)),
            delay_ms=dice.choice((0, 0, 0, 0, 100)),
            expires_ms=300 if dice.random() < 0.02 else None,
            key=f"key-{dice.randrange(20)}" if keyed else None,
            key_window_ms=dice.choice((0, 300)),
            tenant=dice.choice(TENANTS),
            group=f"group-{dice.randrange(GROUPS)}" if self._is_grouped(queue) else None,
        )
        if self._lately and dice.random() < FAMILY_SHARE:
            count = min(len(self._lately), dice.choice((1, 1, 2, 8)))
            return self._child(job, dice.sample(self.lately, count))
        return job

    def _payload(self, id_: str, noise: bytes) -> bytes:
        if self._in_json:
            return b'{"id": "%b",  "noise": "%b"}' % (id_.encode(), noise.hex().encode())
        return id_.encode() + b" " + noise

    def _is_grouped(self, queue: str) -> bool:
        share = 0.9 if queue in ("grouped", "batched") else 0.3
        return queue in GROUPED and self._dice.random() < share

    def _child(self, job: NewJob, parents: list[str]) -> NewJob:
        """Plain jobs stay plain."""
        dice = self._dice
        if job.queue in PLAIN:
            return job
        said: dict[str, Any] = {
            "after": tuple(parents),
            "after_on": dice.choice(("success", "success", "success", "either", "death")),
            "parent_death": dice.choice(("cancel", "run")),
        }
        if job.queue == HOLDING and dice.random() < 0.3:
            said["parent_death"] = "hold"
        return replace(job, **said)


def follow_ups(lease: Lease) -> tuple[NewJob, ...]:
    """The same for the same job, whoever completes it."""
    job = lease.job
    if ".then" in job.id or len(job.payload) % 5:
        return ()
    queue = "grouped" if job.group else "plain"
    return (
        NewJob(
            id=f"{job.id}.then",
            task="follow",
            queue=queue,
            payload=job.id.encode(),
            tenant=job.tenant,
            group=job.group,
            after=(job.id,) if job.group else (),
        ),
    )
