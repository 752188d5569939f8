"""Reads what `core.explain` must know of a job from the engine, in bounded calls."""

from __future__ import annotations

from functools import cache

import msgspec

from holdfast.core import breaker as rules
from holdfast.core import pauses
from holdfast.core.breaker import HOST_PREFIX, TASK_PREFIX, BreakerState
from holdfast.core.causes import Cause, of_the_flow
from holdfast.core.explain import Facts, Seen, explain, startable
from holdfast.core.flow import Waits
from holdfast.core.lifecycle import is_expired
from holdfast.core.model import Job, JobFilter, Record, State
from holdfast.core.pauses import Pause, pause_of
from holdfast.engines.base import Engine, Saved
from holdfast.worker.breaker_book import Book
from holdfast.worker.registry import Workers, load_all
from holdfast.worker.webhook import WEBHOOK, host_of

PAUSE_KIND = pauses.KIND

_PAGE = 100
_PARENTS = 5
_PAGES_MAX = 10


async def explain_job(engine: Engine, job: Job, now: int) -> list[Cause]:
    """Why the job, as `get` read it, is not running. `now` is the engine's clock."""
    views = await engine.queues(counts=False)
    queue = next((view.queue for view in views if view.queue.name == job.queue), None)
    workers = () if job.state.finished else await _seen(engine)
    waiting = job.state is State.WAITING
    ahead, more = await _ahead(engine, job, now, workers) if waiting else (0, False)
    pause = await load_pause(engine, job.queue) if queue and queue.paused else Pause()
    waits = await engine.waits(job.id) if waiting else None
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
    )
    return explain(await _with_breaker(engine, facts) if waiting else facts)


async def explain_waits(engine: Engine, job: Job, now: int) -> tuple[Waits | None, list[Cause]]:
    """What a waiting job waits for beside its time and its workers, and the same in words."""
    waits = await engine.waits(job.id) if job.state is State.WAITING else None
    if waits is None:
        return None, []
    parents = await _states(engine, waits.parents[:_PARENTS])
    return waits, list(of_the_flow(job, waits, parents, now))


async def _with_breaker(engine: Engine, facts: Facts) -> Facts:
    """One that keeps jobs like this one from starting, if there is one."""
    job = facts.job
    host = job.task == WEBHOOK
    key = HOST_PREFIX + host_of(job.payload) if host else TASK_PREFIX + job.task
    book = Book(engine, lambda _: None)
    await book.load()
    known = book.known.get(key)
    if known is None or known.record.state is BreakerState.CLOSED:
        return facts
    left_ms = rules.left_ms(known.record, known.age_ms)
    return msgspec.structs.replace(
        facts,
        breaker=rules.told(known.record, rules.title(key)),
        breaker_key=key,
        breaker_at=None if left_ms is None else facts.now + left_ms,
    )


async def load_pause(engine: Engine, queue: str) -> Pause:
    """What is known of the pause of a queue; nothing when nobody left a word."""
    pause = pause_of(await _pause_record(engine, queue))
    return Pause() if pause.over else pause


async def save_pause(engine: Engine, queue: str, pause: Pause | None) -> None:
    """Leave word who paused the queue, or take it back. Two at once: either may win."""
    for _ in range(3):
        old = await _pause_record(engine, queue)
        value = None if pause is None else msgspec.json.encode(pause)
        if old.value is None and value is None:
            return
        new = msgspec.structs.replace(old, value=value)
        if (await engine.save([new]))[0] is Saved.SAVED:
            return


async def end_pause(engine: Engine, queue: str) -> None:
    """Say of the word, if there is one, that it is over."""
    for _ in range(3):
        old = await _pause_record(engine, queue)
        if old.value is None:
            return
        over = msgspec.json.encode(msgspec.structs.replace(pause_of(old), over=True))
        if (await engine.save([msgspec.structs.replace(old, value=over)]))[0] is Saved.SAVED:
            return


async def _pause_record(engine: Engine, queue: str) -> Record:
    found = (record for record in await load_all(engine, PAUSE_KIND) if record.key == queue)
    return next(found, Record(kind=PAUSE_KIND, key=queue, value=None))


async def _states(engine: Engine, ids: tuple[str, ...]) -> dict[str, State]:
    if not ids:
        return {}
    page = await engine.find(JobFilter(ids=ids), limit=len(ids))
    return {job.id: job.state for job in page.jobs}


async def _seen(engine: Engine) -> tuple[Seen, ...]:
    views = await Workers(engine).all()
    return tuple(Seen(record=view.record, age_ms=view.age_ms) for view in views)


async def _ahead(engine: Engine, job: Job, now: int, workers: tuple[Seen, ...]) -> tuple[int, bool]:
    """How many waiting jobs of its queue are leased before this one, and whether there may be
    more: those that came earlier and those that came later are looked at apart, because either
    may be millions. One that expired, that is due after this one, or that no worker here can run
    is in nobody's way."""

    def comes_first(other: Job) -> bool:
        return (
            _place(other) < _place(job)
            and other.due_at <= max(now, job.due_at)
            and not is_expired(other, now)
            and (other.task == job.task or knows(other.task))
        )

    knows = cache(lambda task: startable(task, job.queue, workers))
    line = JobFilter(queue=job.queue, states=(State.WAITING,))
    earlier = msgspec.structs.replace(line, created_before=job.created_at + 1)
    later = msgspec.structs.replace(line, created_from=job.created_at + 1)
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
    return (-job.priority, job.due_at, job.seq)
