"""Tells every subscriber about an event over HTTP, each on its own and as often as it takes.

Shows follow-up jobs that are enqueued together with the completion, webhooks with signatures and
retries, once-only keys, and a breaker per host: one that is down delays no other.

    openssl rand -hex 32 > secrets
    holdfast worker run webhook_fanout.py:app --webhooks --webhook-secrets secrets
    python webhook_fanout.py order-42 order.paid '{"total": "9.90"}'

SUBSCRIBERS names a file with one URL per line. For receivers on this machine, the worker needs
--webhook-allow 127.0.0.0/8. "holdfast breaker list" shows the hosts that are down.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import Context, Holdfast

app = Holdfast()

SUBSCRIBERS = Path(os.environ.get("SUBSCRIBERS", "subscribers.txt"))


@dataclass
class Event:
    id: str
    kind: str
    data: dict[str, Any]


@app.task
def announce(ctx: Context, event: Event) -> int:
    """Enqueue a delivery for each subscriber, and return how many there are."""
    urls = SUBSCRIBERS.read_text().split()
    for url in urls:
        # They are enqueued in the transaction that completes this job: all of them, or none if it
        # fails and runs again.
        ctx.then(
            app.job(
                "webhook",
                {"url": url, "body": {"id": event.id, "kind": event.kind, "data": event.data}},
                key=f"{event.id} to {url}",
                max_attempts=10,
                backoff="exponential(1s, max=10m)",
                expires="2d",  # not counted as an attempt: the wait for a host that is down
            )
        )
    return len(urls)


if __name__ == "__main__":
    told = Event(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
    job = announce.using(key=f"announce/{told.id}").enqueue(told)
    print(told.id, "was announced before" if job.duplicate else f"is announced by job {job.id}")
