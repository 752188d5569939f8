"""The contestants, their settings, and the durability of their jobs.

Settings are the peer's own recommendation for speed if it has one, else those that measured best on
two cores. `docs/benchmarks.md` gives the source of each.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from bench.stores import EngineName

Runs = Literal["holdfast", "python", "node"]
StoreName = EngineName | Literal["brokered", "rabbitmq", "sqs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A queue under test.

    `unfinished` is the SQL that counts waiting and leased jobs, or the name of the peer's queue at
    RabbitMQ or SQS. `jobs_max` bounds the jobs of a
    slow contestant. The start delay of single jobs is measured only if it `keeps_up` with them.
    One that `syncs` waits for the disk at every commit. `goal` is the wanted ratio of Holdfast's
    rate to this one's.
    """

    name: str
    engine: StoreName
    runs: Runs
    program: str
    durability: str
    unfinished: str
    settings: dict[str, Any] = field(default_factory=dict)
    processes: int = 1
    jobs_max: int = 1_000_000
    keeps_up: bool = True
    syncs: bool = True
    goal: float | None = None


RUN = ["run", "bench.peers.tasks:app"]
DEFAULT = "holdfast"
"""The worker to which the goals apply: it has all defaults."""
_OURS: dict[EngineName, str] = {
    "sqlite": "SELECT count(*) FROM hf_jobs WHERE state IN (0, 1)",
    "postgres": "SELECT count(*) FROM holdfast.jobs WHERE state IN (0, 1)",
}
_LITE = "SELECT count(*) FROM Queue WHERE status IN (0, 1)"
_HUEY = "SELECT count(*) FROM task"
_BOSS = "SELECT count(*) FROM pgboss.job WHERE state < 'completed'"
_COMMIT = "commit synced"

HOLDFAST: tuple[Contestant, ...] = tuple(
    Contestant(
        name=name,
        engine=engine,
        runs="holdfast",
        program="holdfast",
        durability=_COMMIT,
        unfinished=unfinished,
        settings={"words": RUN, **settings},
    )
    for engine, unfinished in _OURS.items()
    for name, settings in (
        (DEFAULT, {"processes": None}),
        ("holdfast, --processes 0", {"processes": 0}),
        ("holdfast, retention 0", {"processes": None, "retention": 0}),
    )
)

PEERS: tuple[Contestant, ...] = (
    Contestant(
        name="huey, fsync, 1 thread",
        engine="sqlite",
        runs="python",
        program="huey",
        durability="synced, lost when taken",
        unfinished=_HUEY,
        settings={"fsync": True, "worker_type": "thread", "workers": 1},
        jobs_max=10_000,
        goal=9.0,
    ),
    Contestant(
        name="huey, no fsync, 1 thread",
        engine="sqlite",
        runs="python",
        program="huey",
        durability="not synced, lost when taken",
        syncs=False,
        unfinished=_HUEY,
        settings={"fsync": False, "worker_type": "thread", "workers": 1},
    ),
    Contestant(
        name="litequeue, 1,000 waiting",
        engine="sqlite",
        runs="python",
        program="litequeue",
        durability="WAL NORMAL: synced now and then",
        syncs=False,
        unfinished=_LITE,
        jobs_max=1_000,
        goal=6.0,
    ),
    Contestant(
        name="litequeue, 5,000 waiting",
        engine="sqlite",
        runs="python",
        program="litequeue",
        durability="WAL NORMAL: synced now and then",
        syncs=False,
        unfinished=_LITE,
        jobs_max=5_000,
    ),
    Contestant(
        name="pgqueuer, batch 100",
        engine="postgres",
        runs="python",
        program="pgqueuer",
        durability=_COMMIT,
        unfinished="SELECT count(*) FROM pgqueuer",
        settings={"managers": 1, "batch": 100},
        goal=4.0,
    ),
    Contestant(
        name="procrastinate, 20 at once",
        engine="postgres",
        runs="python",
        program="procrastinate",
        durability=_COMMIT,
        unfinished="SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
        settings={"concurrency": 20, "delete": "successful"},
        jobs_max=2_000,
    ),
    Contestant(
        name="graphile-worker, local queue 500",
        engine="postgres",
        runs="node",
        program="graphile",
        durability=_COMMIT,
        unfinished="SELECT count(*) FROM graphile_worker._private_jobs",
        settings={"concurrency": 24, "local": 500},
    ),
    Contestant(
        name="graphile-worker, local queue 4,000",
        engine="postgres",
        runs="node",
        program="graphile",
        durability=_COMMIT,
        unfinished="SELECT count(*) FROM graphile_worker._private_jobs",
        settings={"concurrency": 24, "local": 4_000},
        goal=1.0,
    ),
    Contestant(
        name="pg-boss, 4 × 2,000",
        engine="postgres",
        runs="node",
        program="pgboss",
        durability=_COMMIT,
        unfinished=_BOSS,
        settings={
            "notify": True,
            "work": {"localConcurrency": 4, "batchSize": 2_000, "burstWhenBatchFull": True},
        },
        goal=1.3,
    ),
    Contestant(
        name="pg-boss, its defaults",
        engine="postgres",
        runs="node",
        program="pgboss",
        durability=_COMMIT,
        unfinished=_BOSS,
        settings={"notify": False, "work": {}},
        jobs_max=5,
        keeps_up=False,
    ),
)

_DEFAULT = next(each for each in HOLDFAST if each.engine == "postgres")
PLAIN = replace(_DEFAULT, name="holdfast on PostgreSQL")
BROKERED = replace(PLAIN, name="holdfast on RabbitMQ and PostgreSQL", engine="brokered")
BROKER_PEERS: tuple[Contestant, ...] = tuple(
    Contestant(
        name=name,
        engine="rabbitmq",
        runs="python",
        program=program,
        durability="durable queue, confirms, acknowledged after the run",
        unfinished=queue,
        settings=settings,
        processes=2,
        jobs_max=20_000,
    )
    for program, queue, name, settings in (
        ("dramatiq", "default", "dramatiq, 2 × 8 threads", {"threads": 8, "prefetch": 1_000}),
        ("dramatiq", "default", "dramatiq, 2 × 32 threads", {"threads": 32, "prefetch": 1_000}),
        (
            "celery",
            "celery",
            "celery, 2 × solo pool",
            {"pool": "solo", "concurrency": 1, "prefetch": 1_000},
        ),
        (
            "celery",
            "celery",
            "celery, 2 × 16 threads",
            {"pool": "threads", "concurrency": 16, "prefetch": 100},
        ),
    )
)
"""The peers of the benchmark `rabbitmq`."""

SQS_PREFIX = "bench-"
_SQS_DURABILITY = "the endpoint's commit synced, deleted after the run"
ON_SQS = replace(
    _DEFAULT,
    name="holdfast on SQS",
    engine="sqs",
    durability=_SQS_DURABILITY,
    unfinished=f"{SQS_PREFIX}default",
    settings={"words": [*RUN, "--concurrency", "64"], "processes": None},
)
BARE_SQS = Contestant(
    name="bare boto3 loop",
    engine="sqs",
    runs="holdfast",
    program="boto3_loop",
    durability=_SQS_DURABILITY,
    unfinished=f"{SQS_PREFIX}default",
    settings={"threads": 16},
)
SQS_PEERS: tuple[Contestant, ...] = tuple(
    Contestant(
        name=name,
        engine="sqs",
        runs="python",
        program="celery",
        durability=_SQS_DURABILITY,
        unfinished="celery",
        settings=settings,
        processes=2,
        jobs_max=5_000,
    )
    for name, settings in (
        ("celery, 2 × solo pool", {"pool": "solo", "concurrency": 1, "prefetch": 100}),
        ("celery, 2 × 16 threads", {"pool": "threads", "concurrency": 16, "prefetch": 10}),
    )
)
"""The peers of the benchmark `aws`."""
