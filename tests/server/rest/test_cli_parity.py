"""A GET answers the same JSON as the command line with `--json`."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from holdfast.cli import run
from holdfast.core.breaker import KIND
from holdfast.core.model import Record
from holdfast.engines.registry import open_engine
from holdfast.testing.clock import ManualClock
from tests.server.loop_server import ServedEngine
from tests.server.rest.test_dead_letters import die
from tests.server.rest.test_workers import come
from tests.server.rest_client import RestClient, http_client

# The command, the path, and where in the answer the same is.
SAME = [
    (["queue", "list"], "/v1/queues", "queues"),
    (["queue", "show", "mail"], "/v1/queues/mail", ""),
    (["queue", "limits", "mail"], "/v1/queues/mail/limits", ""),
    (["queue", "tenants", "mail"], "/v1/queues/mail/tenants", "tenants"),
    (["status"], "/v1/status", ""),
    (["worker", "list"], "/v1/workers", "workers"),
    (["schedule", "list"], "/v1/schedules", "schedules"),
    (["redrive", "list"], "/v1/redrives", "redrives"),
    (["breaker", "list"], "/v1/breakers", "breakers"),
    (["breaker", "show", "task:t"], "/v1/breakers/task:t", ""),
    (["config", "list"], "/v1/config", "settings"),
    (["config", "get", "lease"], "/v1/config/lease", ""),
    (["distribute"], "/v1/distributions", "distributions"),
    (["dlq", "list"], "/v1/dead", "jobs"),
    (["dlq", "groups"], "/v1/dead/groups", ""),
    (["dlq", "quarantine"], "/v1/dead/quarantine", "jobs"),
    (["dlq", "show", "a"], "/v1/jobs/a", ""),
    (["scaling", "--queue", "mail"], "/v1/scaling?queue=mail", "queues"),
    (["doctor"], "/v1/doctor", ""),
]
# They grow while one looks.
AGES = (
    *("oldest_age_ms", "heartbeat_age_ms", "changed_ms_ago", "free_ms", "share"),
    *("bucket_ms", "trend", "trend_from", "arrivals"),
)


class Both(RestClient):
    """`url` is the store's, for the command line."""

    url = ""


@pytest.fixture
async def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Both]:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/jobs.db"
    store = open_engine(url)
    served = ServedEngine(store)
    await served.open()
    try:
        async with http_client(served.place) as client:
            both = Both(client, store, ManualClock())
            both.url = url
            await fill(both)
            yield both
    finally:
        await served.close()


async def fill(both: Both) -> None:
    """Something of everything."""
    mail = {"name": "mail", "fairness": "shares", "weights": {"acme": 2}, "backoff": "linear(5s)"}
    await both.post("/v1/queues", mail, status=201)
    await both.ask("PUT", "/v1/queues/mail/limits/slots", {"concurrency": 2, "rate": "5/s"})
    await both.enqueue({"id": "m1", "tenant": "acme"}, {"id": "m2", "tenant": "bob"}, queue="mail")
    await both.lease("mail")
    await die(both, "a", "b", text="no route to host")
    await die(both, "c", payload={"text": "ä"})
    await come(both, "w", queues={"mail": 1})
    await both.store.save([Record(kind=KIND, key="task:t", value=b"{}")])
    schedule = {"name": "s", "cron": "0 3 * * *", "job": {"task": "t", "payload": [1]}}
    await both.post("/v1/schedules", schedule, status=201)
    redrive = {"filter": {"task": "none"}, "rate": "1/m", "edit": {"a": None}}
    await both.post("/v1/redrives", redrive, status=201)
    await both.ask("PUT", "/v1/config/lease", {"value": "1m"})
    await both.ask("PUT", "/v1/distributions/mail", {"source": "mail.*"})


async def test_a_get_answers_like_the_command_line(
    both: Both, capfd: pytest.CaptureFixture[str]
) -> None:
    for command, path, at in SAME:
        code = await asyncio.to_thread(run, [*command, "--json", "--url", both.url])
        printed = capfd.readouterr()
        assert (code, printed.err) == (0, ""), command
        told = json.loads(printed.out)
        where, _, query = path.partition("?")
        asked: dict[str, Any] = dict(parse_qsl(query))
        answer = await both.get(where, **asked)
        assert _still(answer[at] if at else answer) == _still(told), command


def _still(value: Any) -> Any:
    """The answer without ages, which grow between two reads, and without the check of the clock."""
    if isinstance(value, dict):
        return {name: _still(each) for name, each in value.items() if name not in AGES}
    if isinstance(value, list):
        return [_still(each) for each in value if not _is_clock(each)]
    return value


def _is_clock(value: Any) -> bool:
    return isinstance(value, dict) and value.get("name") in ("clock", "disk")
