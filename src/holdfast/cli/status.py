"""`holdfast status`: every queue and every worker, how they stand, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli.breakers import print_breakers
from holdfast.cli.output import COMMON, Common, print_json, print_table, say, show_age
from holdfast.cli.pages import program
from holdfast.cli.redrives import print_redrives
from holdfast.cli.running import running
from holdfast.core.breaker import BreakerState
from holdfast.core.explain import ABSENT_MS, serves
from holdfast.core.model import QueueView
from holdfast.standing import standing_of
from holdfast.views.alerts import AlertView, alert_views
from holdfast.views.queues import COUNTS, counts_view, worth_showing
from holdfast.views.status import status_view
from holdfast.views.values import plain
from holdfast.views.workers import worker_view
from holdfast.worker.registry import WorkerView


async def status(*, common: Common = COMMON) -> None:
    """Show every queue and every worker, and how they stand."""
    async with running(common) as app:
        standing = await standing_of(app.engine)
        look = getattr(app.home.store, "partitions", None)
        partitions = look() if look is not None else []
    for each in partitions:
        if each.out_ms is not None:
            out = show_age(each.out_ms)
            say(f"partition {each.name} is shut out for {out}, with what is in it: {each.text}")
    if common.json:
        print_json(plain(status_view(standing)))
        return
    views, workers = standing.queues, standing.workers
    if standing.alerts:
        print_alerts(alert_views(standing.alerts))
        print()
    print_counts(shown(views))
    print()
    if workers:
        print_workers(workers)
        for name in unserved(views, workers):
            start = f"{program()} worker start --queues {name}"
            say(f"jobs are ready in queue {name}, and no worker serves it: {start}")
    else:
        say(f"there is no worker: start one with {program()} worker start")
    troubled = {
        key: each
        for key, each in standing.breakers.items()
        if each.record.state is not BreakerState.CLOSED
    }
    if troubled:
        print()
        print_breakers(troubled)
    if standing.redrives:
        print()
        print_redrives(standing.redrives)


def shown(views: list[QueueView]) -> list[QueueView]:
    """Those that a person wants to see; scripts get all of them."""
    return [view for view in views if worth_showing(counts_view(view))]


def unserved(views: list[QueueView], workers: list[WorkerView]) -> list[str]:
    """Queues with jobs that could start, if a worker looked there."""
    present = [each.record for each in workers if each.age_ms <= ABSENT_MS]
    waiting = [view.queue.name for view in views if view.ready and not view.queue.paused]
    return [name for name in waiting if not any(serves(each, name) for each in present)]


def print_alerts(alerts: Sequence[AlertView]) -> None:
    rows = [(each.severity, each.rule, each.text, f"since {each.raised_at}") for each in alerts]
    print_table(("alert", "rule", "what", "when"), rows)
    if any(each.stale for each in alerts):
        say("some of them nobody looked at lately: alerts are looked after by a server")


def print_counts(views: list[QueueView]) -> None:
    rows = [
        (
            view.queue.name + queue_state(view, " ({})"),
            *(count_of(view, name) for name in COUNTS),
            show_age(view.oldest_age_ms),
        )
        for view in views
    ]
    print_table(("queue", *COUNTS, "oldest"), rows)


def print_workers(workers: list[WorkerView]) -> None:
    rows = []
    for each in workers:
        view = worker_view(each)
        marks = [mark for mark in ("cordoned", "stopping") if getattr(view, mark)]
        rows.append(
            (
                view.name,
                ", ".join([view.health, *marks]),
                f"{view.running}/{view.capacity}",
                view.done,
                view.failed,
                " ".join(view.queues),
                f"{view.host}:{view.pid}",
                f"{show_age(each.age_ms)} ago",
                view.why,
            )
        )
    columns = ("worker", "health", "running", "done", "failed", "queues", "where", "heard", "why")
    print_table(columns, rows)


def count_of(view: QueueView, name: str) -> int | str:
    """With a plus where it is at least so many."""
    count: int = getattr(view, name)
    return f"{count}+" if name in view.estimated else count


def queue_state(view: QueueView, shape: str = "{}") -> str:
    """What keeps jobs from coming in or going out; "" when nothing does."""
    told = ["paused"] if view.queue.paused else []
    told += [] if view.queue.accepting else ["closed"]
    return shape.format(", ".join(told)) if told else ""
