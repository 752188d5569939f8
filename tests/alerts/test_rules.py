"""The measurement of each rule, and when its alert is raised and ended."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from holdfast.alerts.facts import AlertFacts, Growth, PartitionOut
from holdfast.alerts.rules import RULES, Measurement, exceeds, measure
from holdfast.core.model import Queue, QueueView
from holdfast.core.workers import Health, WorkerRecord
from holdfast.engines.broker import BrokerStatus
from holdfast.ops.unreadable import UnreadableRecord
from holdfast.ops.workers import WorkerView
from holdfast.telemetry.meter import OTHER
from tests.alerts.test_levels import thresholds


def view(name: str = "mail", *, paused: bool = False, **counts: object) -> QueueView:
    return QueueView(queue=Queue(name=name, paused=paused), **counts)  # type: ignore[arg-type]


def worker(
    *queues: str, age_ms: int = 0, name: str = "w", cordoned: bool = False, stopping: bool = False
) -> WorkerView:
    record = WorkerRecord(
        name=name,
        id="1",
        host="h",
        pid=1,
        started_at=0,
        queues=dict.fromkeys(queues, 1),
        cordoned=cordoned,
        stopping=stopping,
    )
    return WorkerView(record=record, age_ms=age_ms, health=Health.HEALTHY, why="")


def judged(facts: AlertFacts, **stored: str) -> set[tuple[str, str]]:
    found = measure(facts, thresholds(None, **stored))
    return {(each.rule.name, each.about) for each in found if exceeds(each, raised=False)}


def of(*views: QueueView, workers: Sequence[WorkerView] = (), **grown: Growth) -> AlertFacts:
    return AlertFacts(now=0, views=views, workers=workers, grown=grown)


@pytest.mark.parametrize(("dead", "too_many"), [(0, False), (10, False), (11, True)])
def test_dead_letters(dead: int, too_many: bool) -> None:
    assert judged(of(mail=Growth(dead))) == ({("dead_letters", "mail")} if too_many else set())


def test_dead_letters_of_queues_without_a_label() -> None:
    [found] = measure(AlertFacts(now=0, grown={OTHER: Growth(11)}), thresholds())
    assert found.text == (
        "11 jobs of queues beyond the 500 busiest, or of unknown queues, died within a minute"
    )


@pytest.mark.parametrize(("ready", "too_many"), [(100, False), (101, True)])
def test_depth_counts_ready_jobs(ready: int, too_many: bool) -> None:
    found = judged(of(view(ready=ready, delayed=500, blocked=500, leased=500, dead=100)))
    assert found == ({("depth", "mail")} if too_many else set())


@pytest.mark.parametrize(("dead", "too_many"), [(100, False), (101, True)])
def test_the_depth_of_dead_letters(dead: int, too_many: bool) -> None:
    facts = of(view(dead=dead), view("big", dead=10_000, estimated=frozenset({"dead"})))
    found = {("dead_depth", "big")} | ({("dead_depth", "mail")} if too_many else set())
    assert judged(facts) == found
    assert judged(facts, dead_depth="off,mail:50") == {("dead_depth", "mail")}
    texts = {
        each.about: each.text for each in measure(facts, thresholds(None)) if "dead" in each.text
    }
    assert texts["mail"] == f"queue mail has {dead} dead letters"
    assert texts["big"] == "queue big has at least 10,000 dead letters"


def test_a_queue_may_have_its_own_threshold_or_none() -> None:
    deep = [view(name, ready=150) for name in ("a", "b", "c")]
    assert judged(of(*deep), depth="100,a:200,b:off") == {("depth", "c")}


@pytest.mark.parametrize(("age_ms", "too_old"), [(300_000, False), (300_001, True)])
def test_the_oldest_age(age_ms: int, too_old: bool) -> None:
    facts = of(view(ready=1, oldest_age_ms=age_ms), workers=[worker("mail")])
    assert judged(facts) == ({("oldest_age", "mail")} if too_old else set())


WAITING = view(ready=1, oldest_age_ms=30_001)


@pytest.mark.parametrize(
    "facts",
    [
        of(WAITING, workers=[worker("mail")]),
        of(WAITING, workers=[worker("other"), worker("mail", age_ms=60_000)]),
        of(WAITING, mail=Growth(leased=1)),
        of(view(ready=1, oldest_age_ms=30_001, leased=2, overdue=1)),
        of(view(ready=1, oldest_age_ms=30_001, paused=True)),
        of(view(ready=1, oldest_age_ms=30_000)),
        of(view(leased=3, overdue=3)),
        of(view("worker.w", ready=1, oldest_age_ms=30_001), workers=[worker()]),
    ],
)
def test_a_served_or_paused_queue_raises_no_alert(facts: AlertFacts) -> None:
    assert judged(facts) == set()


@pytest.mark.parametrize(
    "facts",
    [
        of(WAITING),
        of(WAITING, workers=[worker("other")]),
        of(WAITING, workers=[worker("mail", age_ms=60_001)]),
        of(WAITING, workers=[worker("mail", cordoned=True)]),
        of(WAITING, workers=[worker("mail", stopping=True)]),
        of(WAITING, mail=Growth(dead=1)),
        of(view(ready=1, oldest_age_ms=30_001, leased=2, overdue=2)),
    ],
)
def test_a_queue_without_workers(facts: AlertFacts) -> None:
    assert judged(facts) == {("no_worker", "mail")}


def test_a_partition_that_was_shut_out_just_now() -> None:
    facts = AlertFacts(now=0, out=[PartitionOut("p2", 0, "no such host")])
    assert judged(facts) == {("partition_out", "p2")}
    assert judged(facts, partition="no") == set()


@pytest.mark.parametrize(
    ("free", "too_little"), [(None, False), (1024**3, False), (1024**3 - 1, True), (0, True)]
)
def test_the_floor_of_the_disk(free: int | None, too_little: bool) -> None:
    facts = AlertFacts(now=0, free_bytes=free)
    assert judged(facts) == ({("disk_floor", "disk")} if too_little else set())
    assert judged(facts, disk="off") == set()


@pytest.mark.parametrize(("count", "too_many"), [(10, False), (11, True)])
def test_dead_messages_of_a_worker(count: int, too_many: bool) -> None:
    grown = {"worker.eu-1": Growth(dead_messages=count)}
    facts = AlertFacts(now=0, grown=grown, broker=BrokerStatus())
    assert judged(facts) == ({("dead_messages", "worker.eu-1")} if too_many else set())
    assert judged(AlertFacts(now=0, grown=grown)) == set(), "there is no broker"
    [text] = [each.text for each in measure(facts, thresholds()) if "broker gave" in each.text]
    assert text == (
        f"the broker gave up {count} messages to worker eu-1 within a minute: it does not take"
        " its jobs in time"
    )


@pytest.mark.parametrize(("depth", "too_many"), [(None, False), (100, False), (101, True)])
def test_the_depth_of_dead_messages(depth: int | None, too_many: bool) -> None:
    status = BrokerStatus(error="" if depth else "no route", dead_messages=depth)
    facts = AlertFacts(
        now=0,
        workers=[replace(worker(name="silent"), unattended_ms=30_000), worker(name="well")],
        grown={"worker.eu-1": Growth(dead_messages=1), "mail": Growth(dead=1)},
        broker=status,
    )
    assert judged(facts) == ({("dead_message_depth", "broker")} if too_many else set())
    [found] = [each for each in measure(facts, thresholds()) if each.about == "broker"]
    assert found.sure is (depth is not None), "a raised alert lasts while the broker is down"
    if depth:
        assert found.text == (
            f"{depth} dead messages wait at the broker, most recently for worker eu-1, silent:"
            " run upkeep"
        )


def test_a_record_that_cannot_be_read() -> None:
    facts = AlertFacts(now=0, unreadable=[UnreadableRecord("schedule", "bad", "every_ms 0")])
    assert judged(facts) == {("unreadable_records", "records")}
    assert judged(facts, records="no") == set()
    [found] = measure(facts, thresholds())
    assert found.text == (
        "1 stored record cannot be read, first schedule 'bad' (every_ms 0): run \"holdfast doctor\""
    )


@pytest.mark.parametrize(
    ("rule", "threshold", "well", "not_yet"),
    [
        ("depth", 100, 80, 81),
        ("depth", 0, 0, 1),
        ("dead_letters", 10, 8, 9),
        ("oldest_age", 300_000, 240_000, 240_001),
        ("no_worker", 30_000, 0, 1),
        ("partition_out", 0, 0, 1),
        ("disk_floor", 1_000, 1_100, 1_099),
    ],
)
def test_an_alert_ends_well_below_its_threshold(
    rule: str, threshold: int, well: int, not_yet: int
) -> None:
    for value, still in ((well, False), (not_yet, True)):
        reading = Measurement(
            rule=RULES[rule], about="x", value=value, threshold=threshold, text=""
        )
        assert exceeds(reading, raised=True) is still


def test_alert_texts() -> None:
    facts = AlertFacts(
        now=0,
        views=[view(ready=101, oldest_age_ms=400_000, estimated=frozenset({"ready"}))],
        grown={"mail": Growth(11)},
        out=[PartitionOut("p2", 5, "it is gone")],
        free_bytes=5 * 1024**2,
    )
    found = {each.rule.name: each.text for each in measure(facts, thresholds())}
    assert found == {
        "dead_letters": "11 jobs of queue mail died within a minute",
        "dead_depth": "queue mail has 0 dead letters",
        "depth": "at least 101 jobs are ready in queue mail",
        "oldest_age": "at least 101 jobs are ready in queue mail, the first for 6m",
        "no_worker": "at least 101 jobs are ready in queue mail, the first for 6m, "
        "and no worker serves it",
        "partition_out": "partition p2 is shut out, with the jobs in it: it is gone",
        "disk_floor": "5 MiB are free on the disk: a full disk accepts no jobs",
    }


DAY_MS = 86_400_000


@pytest.mark.parametrize(("age_ms", "too_old"), [(8 * DAY_MS, False), (8 * DAY_MS + 1, True)])
def test_before_the_store_deletes_a_job(age_ms: int, too_old: bool) -> None:
    facts = of(
        view(ready=1, oldest_age_ms=age_ms, deleted_after_ms=10 * DAY_MS),
        view("kept", ready=1, oldest_age_ms=age_ms),
    )
    others = {("oldest_age", "mail"), ("oldest_age", "kept")}
    others |= {("no_worker", "mail"), ("no_worker", "kept")}
    assert judged(facts) - others == ({("retention", "mail")} if too_old else set())
    assert judged(facts, retention="off") == others


def test_the_text_says_when_the_job_is_deleted() -> None:
    facts = of(view(ready=1, oldest_age_ms=9 * DAY_MS, deleted_after_ms=10 * DAY_MS))
    [found] = [each for each in measure(facts, thresholds()) if each.rule.name == "retention"]
    assert found.threshold == 8 * DAY_MS
    assert found.text == (
        "a job of queue mail has waited for 9d: after 10d the store deletes it without a dead"
        " letter"
    )


@pytest.mark.parametrize(("leased", "too_many"), [(108_000, False), (108_001, True)])
def test_too_many_messages_in_flight(leased: int, too_many: bool) -> None:
    facts = of(view(leased=leased, leased_max=120_000), view("free", leased=leased))
    assert judged(facts) == ({("in_flight", "mail")} if too_many else set())


def test_an_unknown_age_ends_no_alert() -> None:
    unknown = of(view(ready=1, deleted_after_ms=10 * DAY_MS))
    by_rule = {each.rule.name: each for each in measure(unknown, thresholds())}
    assert [by_rule[name].sure for name in ("oldest_age", "no_worker", "retention")] == [False] * 3
    assert "for how long is unknown" in by_rule["oldest_age"].text
    assert all(each.sure for each in measure(of(view()), thresholds()))
