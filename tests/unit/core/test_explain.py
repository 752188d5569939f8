"""Why a job is not running: each cause alone, and the order of several."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.explain import ABSENT_MS, Cause, Facts, SeenWorker, explain, startable
from holdfast.core.fairness import TenantView
from holdfast.core.limits import Rate, Slot
from holdfast.core.model import (
    Event,
    EventKind,
    Failure,
    Job,
    Overrides,
    Queue,
    Reason,
    State,
    Waits,
)
from holdfast.core.workers import TASKS_SHOWN, WorkerRecord
from tests.sources import PACKAGE, ROOT
from tests.unit.core.strategies import jobs, queues

NOW = 1_000_000
RATE = Rate(count=1, per_ms=1_000)
QUEUE = Queue(name="q")


def job(**fields: Any) -> Job:
    return Job(**{"id": "j", "task": "t", "queue": "q", "due_at": NOW, **fields})


NOISY = (
    "its tenant acme uses 80% of the queue's time, with 40 jobs leased, and yields to the others"
)
WAITS = Waits(
    parents=("a", "b", "c", "d"),
    parent_count=9,
    group_head="h",
    slots=(
        Slot(limit="smtp", key="acme", concurrency=2, rate=None, used=2, holders=("x", "y")),
        Slot(limit="pace", key="", concurrency=None, used=1, free_ms=500, rate=RATE),
        Slot(limit="free", key="", concurrency=5, used=4, rate=RATE),
    ),
    tenant=TenantView(
        tenant="acme", weight=1, waiting=5, leased=40, share=0.8, oldest_age_ms=1, noisy=True
    ),
)


def test_what_it_waits_for_is_named_in_order() -> None:
    found = causes(job(group="g"), worker(), waits=WAITS, parents={"a": State.LEASED})
    assert [(cause.code, cause.text) for cause in found] == [
        ("parents", "it waits for 9 jobs: a (leased), b, c and 6 more"),
        ("group", "job h is ahead of it in group g"),
        ("limit_full", "limit smtp for acme is full: 2 of 2 slots are held, by x, y"),
        ("rate", "limit pace has reached its rate"),
        ("tenant_noisy", NOISY),
    ]
    assert found[0].command == "job explain a"
    assert found[3].at == NOW + 500


@pytest.mark.parametrize("waits", [Waits(parents=("a",), parent_count=1), Waits(group_head="a")])
def test_a_blocked_job_is_not_told_of_the_jobs_ahead(waits: Waits) -> None:
    """To be expedited would not help."""
    assert "jobs_ahead" not in codes(job(group="g"), worker(), waits=waits, ahead=3)


def test_a_parent_that_died_is_to_be_put_back() -> None:
    waits = Waits(parents=("a",), parent_count=1)
    (cause,) = causes(job(), worker(), waits=waits, parents={"a": State.DEAD})
    assert cause.text.endswith("it is held until the dead job is redriven")
    assert cause.command == "job retry a"


def worker(name: str = "w", age_ms: int = 0, **fields: Any) -> SeenWorker:
    plain = {"queues": {"q": 1}, "tasks": ("t",), "capacity": 2}
    record = WorkerRecord(name=name, id="1", host="h", pid=1, started_at=0, **{**plain, **fields})
    return SeenWorker(record=record, age_ms=age_ms)


def causes(
    given: Job, *workers: SeenWorker, queue: Queue | None = QUEUE, **facts: Any
) -> list[Cause]:
    return explain(Facts(job=given, queue=queue, now=NOW, workers=workers, **facts))


def codes(given: Job, *workers: SeenWorker, **facts: Any) -> list[str]:
    return [cause.code for cause in causes(given, *workers, **facts)]


def test_nothing_is_in_its_way() -> None:
    assert codes(job(), worker()) == ["ready"]


@pytest.mark.parametrize(
    ("waiting", "code", "says"),
    [
        (job(due_at=NOW + 1), "delayed", "not due yet"),
        (job(expires_at=NOW), "expired", "expiry"),
        (
            job(
                due_at=NOW + 1,
                events=(
                    Event(
                        at=1,
                        kind=EventKind.RETRIED,
                        attempt=2,
                        failure=Failure(message="no route"),
                    ),
                ),
            ),
            "retry_backoff",
            "attempt 2 of 4 failed (no route)",
        ),
        (
            job(
                due_at=NOW + 1,
                overrides=Overrides(max_attempts=0),
                events=(Event(at=1, kind=EventKind.RETRIED, attempt=2),),
            ),
            "retry_backoff",
            "attempt 2 failed; it waits",
        ),
        (
            job(
                due_at=NOW + 1,
                events=(Event(at=1, kind=EventKind.RELEASED, by="w", text="full"),),
            ),
            "released",
            "released by w (full)",
        ),
    ],
)
def test_what_the_job_itself_waits_for(waiting: Job, code: str, says: str) -> None:
    [cause] = causes(waiting, worker())
    assert cause.code == code
    assert says in cause.text
    assert cause.at == (waiting.expires_at or waiting.due_at)
    assert cause.remedy
    assert cause.command.startswith("job ")
    assert " j" in cause.command


def test_due_now_is_not_delayed_and_expiry_at_the_instant_counts() -> None:
    assert codes(job(due_at=NOW), worker()) == ["ready"]
    assert codes(job(expires_at=NOW + 1), worker()) == ["ready"]


def test_a_paused_queue_and_one_that_is_gone() -> None:
    paused = Queue(name="q", paused=True)
    [cause] = causes(job(), worker(), queue=paused, paused_by="ann", paused_at=5)
    assert (cause.code, cause.at, cause.command) == ("queue_paused", 5, "queue resume q")
    assert "by ann" in cause.text
    [cause] = causes(job(), worker(), queue=paused)
    assert cause.text == "queue q was paused"
    assert codes(job(), worker(), queue=None) == ["queue_gone"]


@pytest.mark.parametrize(
    ("workers", "code", "says"),
    [
        ((), "queue_unserved", "no worker is running"),
        ((worker("x", queues={"other": 1}),), "queue_unserved", "worker x is running"),
        ((worker(age_ms=ABSENT_MS + 1),), "queue_unserved", "no worker is running"),
        ((worker("x", tasks=("other",)),), "task_unknown", "knows the task t; worker x is running"),
        ((worker(running=2),), "workers_saturated", "worker w is saturated: 2 of 2 slots busy"),
        ((worker(cordoned=True),), "workers_cordoned", "worker w is cordoned"),
        ((worker(stopping=True),), "workers_stopping", "worker w is stopping"),
        ((worker(blocked="stuck"),), "workers_unhealthy", "worker w is unhealthy: stuck"),
        ((worker(capacity=0),), "workers_saturated", "0 of 0"),
    ],
)
def test_what_keeps_workers_from_it(workers: tuple[SeenWorker, ...], code: str, says: str) -> None:
    [cause] = causes(job(), *workers)
    assert cause.code == code
    assert says in cause.text
    assert cause.remedy
    assert cause.command


def test_one_worker_with_room_is_enough() -> None:
    others = (worker("a", cordoned=True), worker("b", running=2), worker("c", tasks=()))
    assert codes(job(), *others, worker("d", running=1)) == ["ready"]
    # A degraded worker fills half its room, and so has some as long as a slot is free.
    assert codes(job(), worker(consecutive_failures=3, running=1)) == ["ready"]


def test_a_record_that_is_full_may_leave_a_task_out() -> None:
    first = tuple(f"a{number:04}" for number in range(TASKS_SHOWN))
    assert codes(job(), worker(tasks=first)) == ["ready"]
    assert codes(job(task="a"), worker(tasks=first)) == ["task_unknown"]
    assert codes(job(), worker(tasks=first[1:])) == ["task_unknown"]


def test_the_likely_name_of_a_task_is_told() -> None:
    knowing = worker(tasks=("command", "mail:send", "mail:sweep"))
    [cause] = causes(job(task="mail:sned"), knowing)
    assert "knows the task mail:sned (did you mean mail:send?); worker w is" in cause.text
    assert cause.remedy.startswith("enqueue it under that name, or start")
    [cause] = causes(job(task="report"), knowing)
    assert "did you mean" not in cause.text


def test_what_can_be_started_where() -> None:
    assert startable("t", "q", [])
    assert startable("t", "q", [worker(tasks=(), age_ms=ABSENT_MS + 1)])
    assert startable("t", "q", [worker(tasks=(), queues={"other": 1})])
    assert startable("t", "q", [worker("a", tasks=()), worker("b", tasks=("t",))])
    assert not startable("t", "q", [worker(tasks=("other",))])


def test_workers_that_are_hindered_alike_are_told_together() -> None:
    full = [worker(f"full{number}", running=2) for number in range(7)]
    told = causes(job(), *full, worker("off", cordoned=True))
    assert [cause.code for cause in told] == ["workers_cordoned", "workers_saturated"]
    assert "worker off is" in told[0].text
    assert told[0].command == "worker uncordon off"
    assert "full4 and 2 more are saturated: 14 of 14 slots" in told[1].text


def test_the_addressee_that_is_not_there() -> None:
    addressed = job(queue="worker.bob", expires_at=NOW + 9)
    [cause] = causes(addressed, worker("ann"))
    assert (cause.code, cause.at) == ("addressee_absent", NOW + 9)
    assert "worker bob, which is not running" in cause.text
    [cause] = causes(addressed, worker("bob", age_ms=90_000))
    assert "its last heartbeat was 90 s ago" in cause.text
    assert codes(addressed, worker("bob", queues={})) == ["ready"]


def test_jobs_ahead() -> None:
    [cause] = causes(job(), worker(), ahead=1)
    assert (cause.code, cause.command) == ("jobs_ahead", "job expedite j")
    assert cause.text.startswith("1 waiting job of its queue")
    [cause] = causes(job(), worker(), ahead=30, ahead_more=True)
    assert cause.text.startswith("at least 30 waiting jobs")
    assert codes(job(expires_at=1), worker(), ahead=3) == ["expired"]


def test_every_cause_in_order() -> None:
    stuck = job(due_at=NOW + 5, expires_at=NOW - 5)
    paused = Queue(name="q", paused=True)
    assert codes(stuck, queue=paused, ahead=2) == [
        "expired",
        "delayed",
        "queue_paused",
        "queue_unserved",
    ]
    assert codes(job(due_at=NOW + 5), worker(tasks=()), queue=paused, ahead=2) == [
        "delayed",
        "queue_paused",
        "task_unknown",
        "jobs_ahead",
    ]


def leased(**fields: Any) -> Job:
    plain = {"state": State.LEASED, "worker": "w", "attempt": 2, "leased_at": NOW - 5}
    return job(**{**plain, "deadline_at": NOW + 5, **fields})


def test_a_job_that_runs() -> None:
    [cause] = causes(leased(), worker())
    assert (cause.code, cause.at) == ("running", NOW - 5)
    assert "w is running attempt 2" in cause.text
    assert codes(leased(worker=None)) == ["running"]
    assert codes(leased(cancel_requested=True)) == ["cancelling", "running"]
    lost = causes(leased(), worker(age_ms=ABSENT_MS + 1))
    assert [cause.code for cause in lost] == ["worker_lost", "running"]
    assert lost[0].at == NOW + 5
    overdue = causes(leased(deadline_at=NOW), worker())
    assert [cause.code for cause in overdue] == ["overdue", "running"]
    assert overdue[0].command == "up"


@pytest.mark.parametrize("reason", [*Reason, None])
def test_a_dead_letter_says_why_and_how_to_run_it_again(reason: Reason | None) -> None:
    failure = Event(at=1, kind=EventKind.BURIED, failure=Failure(message="boom"))
    [cause] = causes(job(state=State.DEAD, reason=reason, finished_at=7, events=(failure,)))
    assert (cause.code, cause.at, cause.command) == ("dead", 7, "job retry j")
    assert "(boom)" in cause.text


def test_done_and_cancelled() -> None:
    [cause] = causes(job(state=State.DONE, finished_at=7))
    assert (cause.code, cause.text, cause.command) == ("done", "it is done", "job retry j")
    by = (Event(at=1, kind=EventKind.CANCELLED, by="ann"),)
    [cause] = causes(job(state=State.CANCELLED, finished_at=7, events=by))
    assert cause.text == "it was cancelled by ann"


@given(
    jobs(),
    queues | st.none(),
    st.lists(st.builds(worker, age_ms=st.integers(0, 100_000), running=st.integers(0, 3))),
    st.integers(0, 3),
)
def test_there_is_always_an_answer(
    any_job: Job, queue: Queue | None, workers: list[SeenWorker], ahead: int
) -> None:
    told = causes(any_job, *workers, queue=queue, ahead=ahead)
    assert told
    assert all(cause.text and (cause.remedy or not cause.command) for cause in told)
    assert len({cause.code for cause in told}) == len(told)


@pytest.mark.parametrize(
    ("probed_at", "remedy"),
    [
        (NOW + 5, "wait for the next probe, or close it if the cause is fixed"),
        (None, "close it if the cause is fixed"),
    ],
)
def test_only_a_breaker_that_is_probed_is_waited_for(probed_at: int | None, remedy: str) -> None:
    (cause,) = causes(
        job(), worker(), breaker="it is open", breaker_key="task:t", breaker_at=probed_at
    )
    assert (cause.remedy, cause.command) == (remedy, "breaker close task:t")


def test_a_broker_that_is_down_delays_addressed_jobs_only() -> None:
    seen = worker("w", queues={})
    found = causes(job(queue="worker.w"), seen, broker_error="no route to amqp")
    assert [(cause.code, cause.command) for cause in found] == [("broker_down", "doctor")]
    assert found[0].text == (
        "the broker delivers nothing now (no route to amqp); its worker finds the job by polling"
        " the store, a little later"
    )
    assert codes(job(), worker(), broker_error="no route") == ["ready"]


def test_a_worker_that_does_not_receive_is_unhealthy() -> None:
    seen = SeenWorker(record=worker().record, unattended_ms=30_000)
    (cause,) = causes(job(), seen)
    assert cause.code == "workers_unhealthy"
    assert cause.text.endswith("it has not received from its queue at the broker for 30 s")


def test_the_page_has_every_code_in_order() -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    table = page.partition("<!-- causes -->")[2].partition("<!-- /causes -->")[0]
    told = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    source = (PACKAGE / "core" / "explain.py").read_text()
    written = set(re.findall(r'code="(\w+)"', source)) | {"done", "cancelled"}
    kinds = re.findall(r'^    "(\w+)": \(', source, re.MULTILINE)
    hindrances = {f"workers_{each}" for each in kinds}
    assert set(told) == written | hindrances
    assert len(told) == len(set(told))
