"""Every wrapper forwards every verb with all its arguments, and returns the answer."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from holdfast.conformance.contract.cases import a_job, a_queue, from_default
from holdfast.conformance.history import Journal, Recorded
from holdfast.core.model import Flow, Job, JobFilter, Lease, Page, Receipt, Record, Renewal, Status
from holdfast.core.verdict import Complete, Delete, Outcome, Settlement
from holdfast.engines.base import Engine, Expired, Overdue, Saved, Traits
from holdfast.engines.coalesced import Coalesced
from holdfast.engines.support import FULL
from holdfast.engines.wrapper import Supported, Wrapper
from holdfast.tracing.engine import TracedEngine
from tests.engines import harnesses

QUEUE = a_queue("mail")
LEASE = Lease(job=Job(id="a", task="work", queue="mail", token=16), token=16, lease_ms=1_000)
# No argument has its default.
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], Any]] = {
    "open": ((), {}, None),
    "declare": ((QUEUE,), {"instead_of": None}, False),
    "drop": (("mail",), {}, None),
    "queues": ((), {"names": ["mail"], "counts": False}, []),
    "enqueue": (([a_job()],), {}, [Receipt(id="a", status=Status.NEW)]),
    "lease": ((from_default(2, wait_ms=5),), {}, []),
    "renew": (([Renewal(lease=LEASE)],), {}, [LEASE]),
    "settle": (([Settlement(lease=LEASE, verdict=Complete())],), {}, [Outcome.SETTLED]),
    "overdue": ((3,), {}, Overdue(leases=(), next_ms=7)),
    "expired": ((3,), {}, Expired(jobs=(), next_ms=7)),
    "finished": ((3,), {}, []),
    "recount": ((3,), {}, 2),
    "flow": (("mail",), {"limit": 4}, Flow()),
    "waits": (("a",), {}, None),
    "get": (("a",), {}, LEASE.job),
    "find": ((JobFilter(queue="mail"),), {"limit": 3, "after": 7}, Page(jobs=(), after=5)),
    "tally": ((JobFilter(queue="mail"), "task"), {"limit": 3}, []),
    "amend": ((JobFilter(queue="mail"), Delete()), {"limit": 3}, 1),
    "load": (("setting",), {"after": "k", "limit": 3}, []),
    "save": (([Record(kind="setting", key="k", value=b"1")],), {}, [Saved.SAVED]),
    "close": ((), {}, None),
}
WRAPS: dict[str, harnesses.Wrap] = {
    "plain": Wrapper,
    "supported": Supported,
    "observed": harnesses.observed,
    "coalesced": Coalesced,
    "recorded": lambda engine: Recorded(engine, Journal("tests", lambda _: None)),
    "traced": TracedEngine,
    "brokered": harnesses.brokered,
}

# The broker listens only to queues that the ledger has.
READ_BEFORE = {
    ("brokered", "lease"): [("queues", (), {"names": ["default"], "counts": False})],
}


class Recorder:
    """An engine that only writes down its calls."""

    def __init__(self, traits: Traits) -> None:
        self.traits = traits
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, verb: str) -> Any:
        if verb not in CALLS:
            raise AttributeError(verb)

        async def call(*args: Any, **options: Any) -> Any:
            self.calls.append((verb, args, options))
            return CALLS[verb][2]

        return call

    def wake(self) -> None: ...

    def on_change(self, _: Any) -> None: ...


def test_every_verb_is_called_with_every_argument() -> None:
    for verb, method in inspect.getmembers(Engine, inspect.isfunction):
        if not verb.startswith("_"):
            parameters = list(inspect.signature(method).parameters)[1:]
            args, options, _ = CALLS[verb]
            assert [*parameters[: len(args)], *sorted(options)] == [
                *parameters[: len(args)],
                *sorted(parameters[len(args) :]),
            ]


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("name", WRAPS)
async def test_a_wrapper_forwards_the_whole_call(name: str, verb: str) -> None:
    recorder: Any = Recorder(FULL)
    args, options, answer = CALLS[verb]
    assert await getattr(WRAPS[name](recorder), verb)(*args, **options) == answer
    first = READ_BEFORE.get((name, verb), [])
    assert recorder.calls == [*first, (verb, args, options)]
