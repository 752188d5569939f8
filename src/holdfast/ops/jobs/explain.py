"""Explain why a job is not running: read the facts from the engine in bounded calls, and let
`core.explain` judge them."""

from __future__ import annotations

from functools import cache

from msgspec.structs import replace

from holdfast.core import breaker as rules
from holdfast.core.breaker import HOST_PREFIX, TASK_PREFIX, BreakerState
from holdfast.core.explain import Cause, Facts, SeenWorker, explain, flow_control_causes, startable
from holdfast.core.lifecycle import is_expired
from holdfast.core.model import WEBHOOK_TASK, Job, JobFilter, State, Waits
from holdfast.core.workers import addressee
from holdfast.engines.base import Engine
from holdfast.ops.breakers import read_breakers, webhook_host
from holdfast.ops.broker_status import read_broker_status
from holdfast.ops.queues import Pause, queue_settings, read_pause
from holdfast.ops.workers import Workers

_PAGE = 100
_PARENTS = 5
_PAGES_MAX = 10


async def explain_job(
    engine: Engine, job: Job, now: int, *, broker_of: object = None
) -> list[Cause]:
    """The causes that keep a job, as `get` read it, from running. `now` is the engine's clock.
    `broker_of` is the engine whose broker delivers it, if `engine` does not show it."""
    queue = (await queue_settings(engine, [job.queue])).get(job.queue)
    workers = () if job.state.finished else await _seen_workers(engine)
    waiting = job.state is State.WAITING
    ahead, more = await _ahead(engine, job, now, workers) if waiting else (0, False)
    pause = await read_pause(engine, job.queue) if queue and queue.paused else Pause()
    waits = await engine.waits(job.id) if waiting else None
    broker = None
    if waiting and addressee(job.queue) is not None:
        broker = await read_broker_status(engine if broker_of is None else broker_of)
    facts = Facts(
        job=job,
        queue=queue,
        now=now,
        workers=workers,
        ahead=ahead,
        ahead_more=more,
        paused_by=": ".join(filter(None, [pause.by, pause.text])),
        paused_at=pause.at,
        waits=waits,
        parents=await _states(engine, waits.parents[:_PARENTS]) if waits else {},
        broker_error=broker.error if broker else "",
    )
    return explain(await _with_breaker(engine, facts) if waiting else facts)


async def explain_waits(engine: Engine, job: Job, now: int) -> tuple[Waits | None, list[Cause]]:
    """The dependencies, group and limits that a waiting job waits for, and the same in words."""
    waits = await engine.waits(job.id) if job.state is State.WAITING else None
    if waits is None:
        return None, []
    parents = await _states(engine, waits.parents[:_PARENTS])
    return waits, list(flow_control_causes(job, waits, parents, now))


async def _seen_workers(engine: Engine) -> tuple[SeenWorker, ...]:
    views = await Workers(engine).all()
    return tuple(view.seen for view in views)


async def _ahead(
    engine: Engine, job: Job, now: int, workers: tuple[SeenWorker, ...]
) -> tuple[int, bool]:
    """The number of waiting jobs that are leased before this one, and whether there may be more.

    Jobs created before and after this one are walked separately, since either may be millions. Jobs
    that have expired, are due later or that no worker can run do not count.
    """

    def comes_first(other: Job) -> bool:
        return (
            _place(other) < _place(job)
            and other.due_at <= max(now, job.due_at)
            and not is_expired(other, now)
            and (other.task == job.task or is_startable(other.task))
        )

    is_startable = cache(lambda task: startable(task, job.queue, workers))
    waiting = JobFilter(queue=job.queue, states=(State.WAITING,))
    earlier = replace(waiting, created_before=job.created_at + 1)
    later = replace(waiting, created_from=job.created_at + 1)
    ahead, more = 0, False
    for wanted in (earlier, later):
        after: int | None = None
        for _ in range(_PAGES_MAX):
            page = await engine.find(wanted, limit=_PAGE, after=after)
            ahead += sum(map(comes_first, page.jobs))
            after = page.after
            if after is None:
                break
        more = more or after is not None
    return ahead, more


def _place(job: Job) -> tuple[int, int, int]:
    """The order in which a queue is leased."""
    return (-job.priority, job.due_at, job.seq)


async def _states(engine: Engine, ids: tuple[str, ...]) -> dict[str, State]:
    if not ids:
        return {}
    page = await engine.find(JobFilter(ids=ids), limit=len(ids))
    return {job.id: job.state for job in page.jobs}


async def _with_breaker(engine: Engine, facts: Facts) -> Facts:
    """Add the breaker that keeps this job from starting, if one is open."""
    job = facts.job
    is_webhook = job.task == WEBHOOK_TASK
    key = HOST_PREFIX + webhook_host(job.payload) if is_webhook else TASK_PREFIX + job.task
    known = (await read_breakers(engine)).get(key)
    if known is None or known.record.state is BreakerState.CLOSED:
        return facts
    left_ms = rules.left_ms(known.record, known.age_ms)
    return replace(
        facts,
        breaker=rules.describe(known.record, rules.title(key)),
        breaker_key=key,
        breaker_at=None if left_ms is None else facts.now + left_ms,
    )
