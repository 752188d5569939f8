"""HistoryBuilder builds a history step by step, 100 ms apart, for the tests of the checker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.conformance.checker import Findings, check
from holdfast.conformance.history import Entry, HistoryLine, asked
from holdfast.core.model import Queue

STEP_NS = 100_000_000
LEASE_MS = 1_000


class HistoryBuilder:
    def __init__(self) -> None:
        self.lines: list[HistoryLine] = []
        self.now_ns = 0
        self.process = "p"
        self._calls = 0
        dead = Queue(name="grave")
        for queue in (dead, Queue(name="q"), Queue(name="moved", dead_queue="grave")):
            self.call("declare", facts=asked("declare", queue)["facts"])

    def declare(self, name: str = "q", **settings: Any) -> None:
        facts = asked("declare", Queue(name=name, **settings))["facts"]
        self.call("declare", facts=facts)

    def work(self, id_: str, token: int, **fields: Any) -> None:
        """A lease and its completion."""
        self.lease(token, id_=id_, **fields)
        self.finish(token, id_)

    def finish(self, token: int, id_: str = "a", *, attempt: int = 1) -> None:
        """A completion, and the job is kept as done."""
        self.settle(token, "complete", id=id_, attempt=attempt)
        self.keep(id_=id_)

    def call(self, op: str, *, answer: str = "ok", count: int | None = None, **fields: Any) -> None:
        """An inv line and its answer one step later; `answer` none leaves the call open."""
        answered = fields.pop("answered", ())
        self._calls += 1
        self._line("inv", op, **fields)
        if answer != "none":
            self._line(answer, op, jobs=answered, count=count)

    def enqueue(
        self, id_: str = "a", status: str = "new", answer: str = "ok", **fields: Any
    ) -> None:
        fields = {"queue": "q", "digest": f"payload of {id_}", **fields}
        holder = fields.pop("holder", id_)
        entry = Entry(id=id_, **fields)
        answered = (Entry(id=holder, answer=status),) if answer == "ok" else ()
        self.call("enqueue", jobs=(entry,), answered=answered, answer=answer)

    def enqueue_slowly(self, id_: str, **fields: Any) -> Callable[[], None]:
        """Only asked for; what comes back answers it."""
        fields = {"queue": "q", "digest": f"payload of {id_}", **fields}
        return self._slowly("enqueue", Entry(id=id_, **fields), "new")

    def settle_slowly(self, token: int, verdict: str, outcome: str) -> Callable[[], None]:
        entry = Entry(id="a", queue="q", token=token, attempt=1, verdict=verdict)
        return self._slowly("settle", entry, outcome)

    def _slowly(self, op: str, entry: Entry, status: str) -> Callable[[], None]:
        self.call(op, jobs=(entry,), answer="none")
        call = self._calls

        def answer() -> None:
            self._calls, latest = call, self._calls
            self._line("ok", op, jobs=(Entry(id=entry.id, answer=status),))
            self._calls = latest

        return answer

    def lease(self, token: int, attempt: int = 1, id_: str = "a", **fields: Any) -> None:
        fields = {"queue": "q", "lease_ms": LEASE_MS, "digest": f"payload of {id_}", **fields}
        granted = Entry(id=id_, token=token, attempt=attempt, **fields)
        self.call("lease", queues=("q",), answered=(granted,))

    def lease_many(self, ids: str, token: int, **fields: Any) -> None:
        """Several of one call."""
        granted = tuple(
            Entry(
                id=id_, token=token, attempt=1, queue="q", lease_ms=LEASE_MS,
                digest=f"payload of {id_}", **fields,
            )
            for id_ in ids
        )  # fmt: skip
        self.call("lease", queues=("q",), answered=granted)

    def settle(
        self, token: int, verdict: str, outcome: str = "settled", attempt: int = 1, **fields: Any
    ) -> None:
        answer = fields.pop("answer", "ok")
        fields = {"id": "a", "queue": "q", **fields}
        entry = Entry(token=token, attempt=attempt, verdict=verdict, **fields)
        answered = (Entry(id=entry.id, answer=outcome),) if answer == "ok" else ()
        self.call("settle", jobs=(entry,), answered=answered, answer=answer)

    def renew(self, token: int, outcome: str = "renewed") -> None:
        entry = Entry(id="a", token=token, attempt=1, lease_ms=LEASE_MS)
        self.call("renew", jobs=(entry,), answered=(Entry(id="a", answer=outcome),))

    def overdue(self, token: int) -> None:
        self.call("overdue", answered=(Entry(id="a", token=token, attempt=1, lease_ms=0),))

    def amend(self, verdict: str, count: int = 1, **fields: Any) -> None:
        self.call("amend", jobs=(Entry(id="a", verdict=verdict, **fields),), count=count)

    def keep(self, state: str = "done", id_: str = "a", **fields: Any) -> None:
        fields = {"digest": f"payload of {id_}", "queue": "q", **fields}
        self._line("note", "dump", jobs=(Entry(id=id_, state=state, **fields),))

    def note(self, op: str, **facts: Any) -> None:
        self._line("note", op, facts=facts)

    def rest(self, ms: int) -> None:
        self.now_ns += ms * 1_000_000

    def check(self) -> Findings:
        self.note("drained")
        self.note("dumped")
        return check(self.lines)

    def _line(self, phase: Any, op: str, **fields: Any) -> None:
        self.now_ns += STEP_NS
        call = 0 if phase == "note" else self._calls
        line = HistoryLine(
            process=self.process, at_ns=self.now_ns, phase=phase, op=op, call=call, **fields
        )
        self.lines.append(line)
