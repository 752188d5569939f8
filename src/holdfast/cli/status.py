"""`holdfast status`: every queue and every worker, and how they stand."""

from __future__ import annotations

from holdfast.cli.breakers import breaker_view, load, print_breakers
from holdfast.cli.output import COMMON, Common, print_json, print_table, say, show_age
from holdfast.cli.pages import program
from holdfast.cli.redrives import print_redrives, redrive_view
from holdfast.cli.running import running
from holdfast.cli.views import COUNTS, counts_view, worker_view, worth_showing
from holdfast.core.breaker import BreakerState
from holdfast.core.explain import ABSENT_MS, serves
from holdfast.core.model import QueueView
from holdfast.worker.registry import Workers, WorkerView


async def status(*, common: Common = COMMON) -> None:
    """Show every queue and every worker, and how they stand."""
    async with running(common) as app:
        views = await app.queues()
        workers = await Workers(app.engine).all()
        breakers = await load(app.engine)
        redrives = await app.redrives.going_on()
    if common.json:
        print_json(
            {
                "queues": [counts_view(view) for view in views],
                "workers": [worker_view(each) for each in workers],
                "breakers": [breaker_view(key, each) for key, each in breakers.items()],
                "redrives": [redrive_view(view) for view in redrives],
            }
        )
        return
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
        key: each for key, each in breakers.items() if each.record.state is not BreakerState.CLOSED
    }
    if troubled:
        print()
        print_breakers(troubled)
    if redrives:
        print()
        print_redrives(redrives)


def shown(views: list[QueueView]) -> list[QueueView]:
    """Those that a person wants to see; scripts get all of them."""
    return [view for view in views if worth_showing(counts_view(view))]


def unserved(views: list[QueueView], workers: list[WorkerView]) -> list[str]:
    """Queues with jobs that could start, if a worker looked there."""
    present = [each.record for each in workers if each.age_ms <= ABSENT_MS]
    waiting = [view.queue.name for view in views if view.ready and not view.queue.paused]
    return [name for name in waiting if not any(serves(each, name) for each in present)]


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
        marks = [mark for mark in ("cordoned", "stopping") if view[mark]]
        rows.append(
            (
                view["name"],
                ", ".join([view["health"], *marks]),
                f"{view['running']}/{view['capacity']}",
                view["done"],
                view["failed"],
                " ".join(view["queues"]),
                f"{view['host']}:{view['pid']}",
                f"{show_age(each.age_ms)} ago",
                view["why"],
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
