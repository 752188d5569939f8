"""The queues and jobs of a torture run: the settings each queue changes between, and random jobs.

A queue starts with its first settings. Retry policy is the same in all of them, so clients use the
first ones to decide.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from msgspec.structs import replace

from holdfast.core.backoff import Backoff
from holdfast.core.limits import Limit, Rate
from holdfast.core.model import Lease, NewJob, Queue, Receipt, Status

LEASE_MS = 600
TTL_MS = 2_000
DEPTH_MAX = 60
"""Producers enqueue more than the limits let through; the rest is refused at this depth."""
TENANTS = ("ada", "bob", "cyd", "dan")
PLAIN = ("plain", "kept", "moved")
HOLDING = "aged"
"""The only queue whose jobs may wait until the faults end: it has no groups and no depth limit."""
ADDRESSED = ("worker.ann", "worker.ben")
"""The own queues of two workers. Only the tests with a broker use them."""
CHILD_SHARE = 0.25
RECENT_MAX = 30
GROUPS = 12


def _queue(name: str, **settings: Any) -> Queue:
    quick = Backoff(kind="constant", first_ms=50, cap_ms=200, jitter=0.5)
    return Queue(name=name, lease_ms=LEASE_MS, backoff=quick, **settings)


def _deep(name: str, **settings: Any) -> Queue:
    return _queue(name, max_depth=DEPTH_MAX, **settings)


def _limited(slots: int, each: int) -> Queue:
    tenants = Limit(name="tenants", key="{tenant}", concurrency=each)
    return _deep("limited", limits=(Limit(name="slots", concurrency=slots), tenants))


def _paced(rate: Rate) -> Queue:
    tenants = Limit(name="tenant-pace", key="{tenant}", rate=Rate(count=8, per_ms=500))
    return _deep("paced", limits=(Limit(name="pace", rate=rate), tenants))


def _fair(weights: dict[str, int]) -> Queue:
    tenants = Limit(name="share", key="{tenant}", concurrency=3)
    return _deep("fair", fairness="shares", weights=weights, limits=(tenants,))


def _batched(slots: int) -> Queue:
    """Shares its slots with the queue `limited`."""
    return _deep("batched", group_batch=3, limits=(Limit(name="slots", concurrency=slots),))


SETTINGS: dict[str, tuple[Queue, ...]] = {
    variants[0].name: variants
    for variants in (
        (_queue("grave", max_attempts=3),),
        (_queue("plain", max_attempts=5),),
        (_queue("kept", order="keep"),),
        (_queue("moved", dead_queue="grave", max_attempts=2),),
        (_limited(3, 1), _limited(6, 2), _limited(2, 1)),
        (_paced(Rate(count=20, per_ms=500, burst=5)), _paced(Rate(count=40, per_ms=500, burst=2))),
        (_fair({"ada": 5}), _fair({"bob": 3, "cyd": 2})),
        (_deep("noisy", fairness="noisy"),),
        (_deep("grouped"),),
        (_batched(4), _batched(6)),
        (_queue("aged", aging_ms=150),),
        (
            # Every change of these moves the waiting jobs to other lanes.
            _deep("shifting", limits=(Limit(name="shift", key="{tenant}", concurrency=2),)),
            _deep("shifting", fairness="shares"),
            _deep(
                "shifting",
                fairness="noisy",
                limits=(Limit(name="shift", key="{task}", concurrency=4),),
            ),
            _deep("shifting"),
        ),
        *((_queue(name, expires_ms=TTL_MS),) for name in ADDRESSED),
    )
}
QUEUES = {name: variants[0] for name, variants in SETTINGS.items()}
FLOWING = tuple(name for name in QUEUES if name not in (*PLAIN, *ADDRESSED, "grave"))
GROUPED = ("grouped", "batched", "limited", "shifting")
CHANGING = tuple(name for name, variants in SETTINGS.items() if len(variants) > 1)


class JobFactory:
    """Creates jobs whose ids begin with `name`. Parents are drawn from recently seen jobs, also of
    other clients. Payloads are random bytes, or JSON with `in_json`."""

    def __init__(self, name: str, rng: random.Random, *, in_json: bool = False) -> None:
        self._name = name
        self._in_json = in_json
        self._rng = rng
        self._made = 0
        self._recent: deque[str] = deque(maxlen=RECENT_MAX)

    @property
    def recent(self) -> list[str]:
        """Ids of recently seen jobs."""
        return list(self._recent)

    def saw(self, leases: list[Lease]) -> None:
        """Remember leased jobs."""
        self._recent.extend(lease.id for lease in leases)

    def answered(self, receipts: list[Receipt]) -> int:
        """Remember the new jobs; return their number."""
        new = [receipt.id for receipt in receipts if receipt.status is Status.NEW]
        self._recent.extend(new)
        return len(new)

    def batch(self) -> list[NewJob]:
        """Create the jobs of one call. The first may be a parent of the rest, the last a child."""
        rng = self._rng
        # Mostly of two queues: a call that touches all queues waits for all other calls.
        queues = [rng.choice(PLAIN), rng.choice(FLOWING)]
        if rng.random() < 0.1:
            queues = [*PLAIN, *FLOWING]
        jobs = [self._job(rng.choice(queues)) for _ in range(rng.choice((1, 1, 3, 10)))]
        roll = rng.random()
        if len(jobs) > 1 and roll < 0.15:
            first, *others = jobs
            jobs = [first, *(self._child(job, [first.id]) for job in others)]
        elif len(jobs) > 1 and roll < 0.3:
            *others, last = jobs
            jobs = [*others, self._child(last, [job.id for job in others])]
            # A parent may come after its child in a batch.
            rng.shuffle(jobs)
        return jobs

    def _job(self, queue: str) -> NewJob:
        rng = self._rng
        self._made += 1
        id_ = f"{self._name}-{self._made}"
        keyed = rng.random() < 0.1
        job = NewJob(
            id=id_,
            task="torture",
            queue=queue,
            payload=self._payload(id_, rng.randbytes(rng.choice((10, 200, 3_000)))),
            priority=rng.choice((0, 0, 0, 1)),
            delay_ms=rng.choice((0, 0, 0, 0, 100)),
            expires_ms=300 if rng.random() < 0.02 else None,
            key=f"key-{rng.randrange(20)}" if keyed else None,
            key_window_ms=rng.choice((0, 300)),
            key_hold=rng.choice(("job", "window")),
            tenant=rng.choice(TENANTS),
            group=f"group-{rng.randrange(GROUPS)}" if self._is_grouped(queue) else None,
        )
        if self._recent and rng.random() < CHILD_SHARE:
            count = min(len(self._recent), rng.choice((1, 1, 2, 8)))
            return self._child(job, rng.sample(self.recent, count))
        return job

    def _payload(self, id_: str, noise: bytes) -> bytes:
        if self._in_json:
            return b'{"id": "%b",  "noise": "%b"}' % (id_.encode(), noise.hex().encode())
        return id_.encode() + b" " + noise

    def _is_grouped(self, queue: str) -> bool:
        share = 0.9 if queue in ("grouped", "batched") else 0.3
        return queue in GROUPED and self._rng.random() < share

    def _child(self, job: NewJob, parents: list[str]) -> NewJob:
        """Add parents to a job, unless its queue is for plain jobs."""
        rng = self._rng
        if job.queue in PLAIN:
            return job
        fields: dict[str, Any] = {
            "after": tuple(parents),
            "after_on": rng.choice(("success", "success", "success", "either", "death")),
            "parent_death": rng.choice(("cancel", "run")),
        }
        if job.queue == HOLDING and rng.random() < 0.3:
            fields["parent_death"] = "hold"
        return replace(job, **fields)


def follow_ups(lease: Lease) -> tuple[NewJob, ...]:
    """Return the follow-up jobs of a lease; they depend only on the job."""
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
