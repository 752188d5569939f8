"""Generates the tables of engines from their traits, and the table of extras from pyproject.toml.

`python -m tests.docs.tables` rewrites them in the pages.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

from holdfast.core import bounds
from holdfast.engines.base import Traits
from holdfast.engines.registry import open_engine
from holdfast.engines.remote.engine import remote_traits

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
CHOOSING = ROOT / "docs" / "choosing-an-engine.md"
INSTALL = ROOT / "docs" / "install.md"


def _traits(url: str) -> Traits:
    """The traits of an engine that is created and never opened, so that nothing is connected to."""
    return open_engine(url).traits


_IN_README = {
    "`memory:`": _traits("memory:"),
    "`sqlite:///work.db`": _traits("sqlite:///work.db"),
    "`postgresql://host/db`": _traits("postgresql://host/db"),
    "`sqs://eu-west-1/`": _traits("sqs://eu-west-1/"),
}
_ALL = {
    "memory": _traits("memory:"),
    "[SQLite](engines/sqlite.md)": _traits("sqlite:///work.db"),
    "[PostgreSQL](engines/postgres.md)": _traits("postgresql://host/db"),
    "[partitions](engines/partitioned.md)": _traits("partitioned:sqlite:///a.db,sqlite:///b.db"),
    "[RabbitMQ](engines/rabbitmq.md)": _traits("brokered:amqp://host,postgresql://host/db"),
    "[SQS](engines/sqs.md)": _traits("sqs://eu-west-1/?control=postgresql://host/db"),
    "[a server](engines/remote.md)": remote_traits(_traits("postgresql://host/db")),
}


def _has(trait: str) -> Callable[[Traits], str]:
    return lambda traits: "yes" if getattr(traits, trait) else "no"


_SHORT_ROWS: dict[str, Callable[[Traits], str]] = {
    "survives the process": _has("durable"),
    "shared by processes": _has("shared"),
    "priorities": _has("priority"),
    "once-only keys": _has("keys"),
    "renewal and fencing tokens": _has("fencing"),
    "enqueue and settle in your own transaction": _has("transactional"),
    "search, edit, redrive": _has("inspect"),
}


def _groups(traits: Traits) -> str:
    if traits.fifo_groups:
        return "in queues named `….fifo`"
    return "yes" if traits.groups else "no"


def _follow_ups(traits: Traits) -> str:
    assert traits.follow_ups
    return "in one transaction" if traits.atomic else "at least once"


def _together(traits: Traits) -> str:
    return f"{traits.atomic_max:,}" if traits.atomic else "none"


_LONG_ROWS: dict[str, Callable[[Traits], str]] = {
    "survives the process": _has("durable"),
    "shared by processes": _has("shared"),
    "leases are renewed": _has("renew"),
    "fencing: a worker that lost its lease can change nothing": _has("fencing"),
    "search, edit, cancel and redrive jobs": _has("inspect"),
    "results of jobs": _has("results"),
    "progress, checkpoints, output": _has("notes"),
    "priorities": _has("priority"),
    "one order over the whole queue": _has("ordered"),
    "ordered groups": _groups,
    "once-only keys": _has("keys"),
    "dependencies": _has("dependencies"),
    "concurrency limits, largest depth": _has("limits"),
    "rate limits": _has("rates"),
    "fairness and weights of tenants": _has("fairness"),
    "follow-up jobs with a completion": _follow_ups,
    "schedules, worker registry, settings": _has("records"),
    "enqueue and settle in your own transaction": _has("transactional"),
    "giving a job back costs no attempt": _has("refunds"),
    "counts": lambda traits: "exact" if traits.exact_counts else "estimates",
    "times": lambda traits: "milliseconds" if traits.exact_times else "seconds",
    "longest delay": lambda traits: _duration(traits.delay_ms_max),
    "longest lease without renewal": lambda traits: _duration(traits.lease_ms_max),
    "largest payload": lambda traits: f"{traits.payload_max // 1024:,} KiB",
    "jobs in one call": lambda traits: f"{traits.batch_max:,}",
    "jobs of a call that surely commit together": _together,
}


def _duration(ms: int) -> str:
    for name, size in {"year": 365 * 86_400_000, "day": 86_400_000, "hour": 3_600_000}.items():
        if ms >= size:
            return f"{ms // size} {name}s"
    return f"{ms // 60_000} minutes"


def _table(engines: dict[str, Traits], rows: dict[str, Callable[[Traits], str]]) -> str:
    lines = [f"| | {' | '.join(engines)} |", f"|---|{'---|' * len(engines)}"]
    for label, cell in rows.items():
        lines.append(f"| {label} | {' | '.join(map(cell, engines.values()))} |")
    return "\n".join(lines) + "\n"


def _short_table() -> str:
    """The table of the README, and the bounds that all its engines share."""
    usual, largest = bounds.QUEUE_PAYLOAD_MAX, bounds.PAYLOAD_MAX
    assert {traits.payload_max for traits in _IN_README.values()} == {usual, largest}
    [batch_max] = {traits.batch_max for traits in _IN_README.values()}
    return (
        f"{_table(_IN_README, _SHORT_ROWS)}\n"
        f"Payloads up to {usual // 1024:,} KiB, or up to {largest // 1024:,} KiB where a queue's"
        f" `payload_max` allows it (not on SQS);\nup to {batch_max:,} jobs in one call.\n"
    )


_EXTRAS = {
    "server": "`holdfast serve`, and the server of `holdfast up`: REST, dashboard, SQS, metrics",
    "remote": "use a server as the store: `https://host`",
    "postgres": "the [PostgreSQL engine](engines/postgres.md)",
    "rabbitmq": "[RabbitMQ](engines/rabbitmq.md) beside the store, and [gates](gates.md) to it",
    "aws": "[jobs on Amazon SQS](engines/sqs.md), [gates](gates.md) to SQS, CloudWatch, the fleet",
    "speed": "a faster event loop and HTTP parser, for servers and workers",
    "otel": "[OpenTelemetry](integrations/opentelemetry.md) traces",
    "django": "[Django tasks](integrations/django.md)",
    "fastapi": "[FastAPI](integrations/fastapi.md)",
    "flask": "[Flask](integrations/flask.md)",
    "sqlalchemy": "[SQLAlchemy](integrations/sqlalchemy.md)",
    "sentry": "[Sentry](integrations/sentry.md)",
    "structlog": "[structlog](integrations/structlog.md)",
}


def _extras_table() -> str:
    """The extras of pyproject.toml with what they are for and the packages they bring."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    assert set(extras) == set(_EXTRAS), "describe each extra in tests/docs/tables.py"
    lines = ["| extra | for | packages |", "|---|---|---|"]
    for name, purpose in _EXTRAS.items():
        packages = dict.fromkeys(re.split(r"[<>=\[ ;]", each)[0] for each in extras[name])
        lines.append(f"| `{name}` | {purpose} | {', '.join(packages)} |")
    return "\n".join(lines) + "\n"


_TABLES: dict[Path, tuple[str, Callable[[], str]]] = {
    README: ("engines", _short_table),
    CHOOSING: ("engines", lambda: _table(_ALL, _LONG_ROWS)),
    INSTALL: ("extras", _extras_table),
}
PAGES = tuple(_TABLES)


def with_table(page: Path) -> str:
    """Return the text of a page with its current table."""
    text = page.read_text()
    mark, table = _TABLES[page]
    marked = re.search(rf"<!-- {mark} -->\n(.*?)<!-- /{mark} -->", text, re.DOTALL)
    assert marked, f"{page.name} must contain the marks <!-- {mark} --> and <!-- /{mark} -->"
    return text[: marked.start(1)] + table() + text[marked.end(1) :]


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(with_table(each))
