"""The queues, schedules and jobs of `holdfast demo`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from holdfast.app.application import Holdfast
from holdfast.core.model import NewJob
from holdfast.ops.ticks import Schedule

SERVED = {
    "mail.welcome": 2,
    "mail.digest": 1,
    "media.pictures": 2,
    "media.videos": 1,
    "shop.orders": 3,
    "shop.payments": 3,
    "crm": 1,
    "reports": 1,
    "default": 1,
}
"""The queues that the demo's workers serve, with their weights."""

_UNSERVED, _PAUSED = "billing.export", "mail.campaign"
_TENANTS = ("acme", "globex", "initech", "umbrella")
_FIRST_JOBS = 120

Mixture = tuple[int, Callable[[], tuple[str, Any, dict[str, Any]]]]
"""A weight, and a function that makes a task, its payload and its options."""


async def furnish(app: Holdfast) -> None:
    """Create the queues and schedules, and the first jobs: some of them wait for a reason."""
    for queue in (*SERVED, _UNSERVED):
        await app.declare(queue)
    await app.declare("shop.orders", fairness="shares", weights={"acme": 3})
    await app.declare(_PAUSED, paused=True)
    await app.limit("shop.payments", "payment-provider", concurrency=2)
    for schedule in _schedules(app):
        if await app.schedules.get(schedule.name) is None:
            await app.schedules.add(schedule)
    await app.enqueue_many([next_job(app) for _ in range(_FIRST_JOBS)])
    parent = app.job("media.transcode", {"video": "keynote.mov"}, queue="media.videos")
    others = [
        app.job("mail.send", _mail(), queue="media.videos", after=[parent.id]),
        app.job("mail.send", _mail(), queue="mail.digest", delay="10m"),
        app.job("billing.export", {"month": "2026-10"}, queue=_UNSERVED),
        app.job("billing.export", {"month": "2026-11"}, queue=_UNSERVED),
        *(app.job("mail.send", _mail("spring"), queue=_PAUSED) for _ in range(12)),
    ]
    await app.enqueue_many([parent, *others])


def next_job(app: Holdfast) -> NewJob:
    """One job of the mix, chosen by weight."""
    [(_, make)] = random.choices(_MIXTURE, _WEIGHTS)
    task, payload, options = make()
    return app.job(task, payload, **options)


def _schedules(app: Holdfast) -> list[Schedule]:
    def job(task: str, payload: Any, queue: str) -> NewJob:
        return app.job(task, payload, queue=queue, labels={"source": "schedule"})

    return [
        Schedule(
            name="digest",
            job=job("mail.send", _mail("digest"), "mail.digest"),
            every_ms=15_000,
        ),
        Schedule(
            name="nightly-report",
            job=job("reports.primes", {"below": 60_000}, "reports"),
            cron="30 2 * * *",
            zone="Europe/Berlin",
        ),
        Schedule(
            name="quarterly-audit",
            job=job("reports.primes", {"below": 90_000}, "reports"),
            cron="0 6 1 1,4,7,10 *",
            paused=True,
        ),
    ]


def _mail(template: str = "welcome") -> dict[str, str]:
    domain = random.choices(("@example.org", "@example.net", ""), (60, 40, 2))[0]
    return {"to": f"user{random.randrange(1000)}{domain}", "template": template}


def _order() -> dict[str, str]:
    country = random.choices(("de", "fr", "us", "ch", ""), (40, 30, 20, 3, 2))[0]
    return {"id": f"A-{random.randrange(100_000):05}", **({"country": country} if country else {})}


def _for_tenant(queue: str) -> dict[str, Any]:
    tenant = random.choices(_TENANTS, (8, 3, 2, 1))[0]
    region = random.choice(("eu", "us"))
    return {"queue": queue, "tenant": tenant, "labels": {"region": region}}


def _customer() -> dict[str, Any]:
    return {**_for_tenant("mail.welcome"), "priority": random.choice((0, 0, 0, 5))}


_MIXTURE: list[Mixture] = [
    (30, lambda: ("mail.send", _mail(), _customer())),
    (
        15,
        lambda: ("media.resize", {"picture": "cat.png", "width": 640}, {"queue": "media.pictures"}),
    ),
    (1, lambda: ("media.transcode", {"video": "talk.mov"}, {"queue": "media.videos"})),
    (1, lambda: ("media.native", {}, {"queue": "media.pictures"})),
    (
        4,
        lambda: ("reports.primes", {"below": random.randint(10_000, 60_000)}, {"queue": "reports"}),
    ),
    (5, lambda: ("shop.import", {"rows": random.randint(20, 120)}, _for_tenant("shop.orders"))),
    (10, lambda: ("shop.invoice", {"order": _order()}, _for_tenant("shop.orders"))),
    (
        15,
        lambda: ("shop.charge", {"cents": random.randrange(10_000)}, _for_tenant("shop.payments")),
    ),
    (6, lambda: ("crm.sync", {"contact": random.randrange(100_000)}, {"queue": "crm"})),
    (8, lambda: ("command", {"command": ["echo", "hello"]}, {})),
    (4, lambda: ("command", {"command": "sleep 1; date"}, {"delay": "2s"})),
    (2, lambda: ("command", {"command": "exit 3"}, {"max_attempts": 2})),
    (1, lambda: ("command", {"command": ["sleep", "60"]}, {"timeout": "2s"})),
]
_WEIGHTS = [weight for weight, _ in _MIXTURE]
