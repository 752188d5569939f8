"""The tasks of the fleet in a store in memory, as they are on any engine; their queue on SQS is in
`test_run.py`."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Bury, Job
from holdfast.testing import manual
from holdfast.testing.modes import Manual
from holdfast_fleet import tasks
from holdfast_fleet.model import TASK_TYPES
from holdfast_fleet.settings import FleetSettings
from holdfast_fleet.tasks import Fleet, app
from tests.fleet.cloud import Cloud
from tests.fleet.samples import INSTANCE, JOB, housekeeping, termination


@pytest.fixture
def fleet(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    found = cloud.fleet()
    monkeypatch.setattr(tasks, "fleet", lambda: found)
    return found


@pytest.fixture
def jobs(fleet: Fleet) -> Iterator[Manual]:
    with manual(app) as found:
        yield found


def enqueue(task: str, payload: Any, **options: Any) -> str:
    options.setdefault("queue", "default")
    return app.run(app.enqueue(task, payload, **options)).id


def look(id_: str) -> Job:
    job = app.run(app.get(id_))
    assert job is not None
    return job


def test_threads_that_begin_together_share_one_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would count and bound their own work each, and write the same metrics file."""
    made: list[object] = []
    both = threading.Barrier(2)

    class SlowToMake:
        def __init__(self, settings: object) -> None:
            made.append(settings)
            time.sleep(0.05)

    def begin() -> None:
        both.wait()
        tasks.fleet()

    monkeypatch.setattr(tasks, "Fleet", SlowToMake)
    monkeypatch.setattr(FleetSettings, "from_environment", lambda: "settings")
    tasks._fleet.cache_clear()
    threads = [threading.Thread(target=begin) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tasks._fleet.cache_clear()
    assert made == ["settings"]


def test_a_termination(cloud: Cloud, jobs: Manual) -> None:
    cloud.put_job(JOB, status="running", instance_id=INSTANCE)
    name = cloud.put_parameter(INSTANCE)
    enqueue("termination", termination())
    assert jobs.drain().done == 1
    assert cloud.jobs()[JOB]["status"] == "completed"
    assert name not in cloud.parameters()
    assert cloud.metrics() == ["JobDuration completed", "JobSuccess"]


def test_a_second_message_changes_and_counts_nothing(cloud: Cloud, jobs: Manual) -> None:
    for _ in range(3):
        enqueue("termination", termination())
    assert jobs.drain().done == 3
    assert cloud.total("JobSuccess") == (1, 1)


@pytest.mark.parametrize(
    "payload",
    [
        {},
        [],
        None,
        termination(status="ended"),
        {**termination(), "ctx": 1, "exit_code": "0"},
        {"Records": [termination()]},
    ],
)
@pytest.mark.parametrize("task", ["termination", "housekeeping"])
def test_what_is_not_valid_is_rejected(jobs: Manual, task: str, payload: Any) -> None:
    id_ = enqueue(task, payload)
    jobs.drain()
    job = look(id_)
    assert (job.reason, job.attempt) == ("rejected", 1)


def test_text_is_rejected(jobs: Manual) -> None:
    id_ = enqueue("termination", b"not json", content_type="text/plain")
    jobs.drain()
    assert look(id_).reason == "rejected"


def test_a_termination_before_its_job_runs(cloud: Cloud, jobs: Manual) -> None:
    """Messages and records may be written in another order: it is tried again."""
    cloud.put_job(JOB, status="queued", instance_id=INSTANCE)
    id_ = enqueue("termination", termination())
    jobs.drain()
    assert look(id_).state == "waiting"
    assert cloud.jobs()[JOB]["status"] == "queued"
    cloud.put_job(JOB, status="running", instance_id=INSTANCE)
    jobs.advance("1h")
    assert jobs.drain().done == 1
    assert cloud.jobs()[JOB]["status"] == "completed"


def test_a_contradiction_becomes_a_dead_letter(cloud: Cloud, jobs: Manual) -> None:
    cloud.put_job(JOB, status="completed", instance_id="i-0123456789abcdef1")
    id_ = enqueue("termination", termination(), max_attempts=10)
    for _ in range(5):
        jobs.drain()
        jobs.advance("1h")
    job = look(id_)
    assert (job.state, job.attempt) == ("dead", 3)
    failure = job.failures[-1].failure
    assert failure is not None
    assert f"job {JOB} ended as success" in failure.message


def test_a_late_termination(cloud: Cloud, jobs: Manual) -> None:
    """Its record was deleted long ago: a new one is terminal, and as old as the message says."""
    enqueue("termination", termination(completed_at="2001-01-01T00:00:00Z"))
    assert jobs.drain().done == 1
    enqueue("housekeeping", housekeeping("old_jobs"))
    assert jobs.drain().done == 1
    assert cloud.jobs() == {}


@pytest.mark.parametrize("task", TASK_TYPES)
def test_housekeeping_by_message_and_by_schedule(jobs: Manual, task: str) -> None:
    enqueue("housekeeping", housekeeping(task))
    enqueue("scheduled", {"task_type": task})
    assert jobs.drain().done == 2


def test_a_message_beside_a_run_is_done_with_it(fleet: Fleet, jobs: Manual) -> None:
    until = int(time.time()) + 600
    assert fleet.aws.take_lock("old_jobs", owner="x", job="other", expires_at=until) is None
    id_ = enqueue("housekeeping", housekeeping("old_jobs"))
    assert jobs.drain().done == 1
    assert b"skipped" in (look(id_).result or b"")


def test_an_attempt_after_a_killed_one_waits_for_its_lock(
    cloud: Cloud, fleet: Fleet, jobs: Manual
) -> None:
    id_ = enqueue("housekeeping", housekeeping("old_jobs"))
    until = int(time.time()) + 300
    assert fleet.aws.take_lock("old_jobs", owner="killed", job=id_, expires_at=until) is None
    jobs.drain()
    assert look(id_).state == "waiting"
    jobs.advance("290s")
    assert jobs.drain().attempts == 0
    fleet.aws.release_lock("old_jobs", owner="killed")
    jobs.advance("15s")
    assert jobs.drain().done == 1


def test_a_message_of_an_untagged_queue(cloud: Cloud, jobs: Manual) -> None:
    app.run(app.declare("termination"))
    app.run(app.declare("housekeeping"))
    enqueue("message", termination(), queue="termination")
    enqueue("message", housekeeping("stale_ssm"), queue="housekeeping")
    assert jobs.drain().done == 2
    assert JOB in cloud.jobs()
    id_ = enqueue("message", termination())
    jobs.drain()
    assert look(id_).reason == "rejected"


def test_at_most_five_terminations_at_a_time(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = cloud.fleet()
    guard = threading.Lock()
    running = most = 0
    all_in = threading.Event()

    def complete(_message: object) -> bool:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
            if running == tasks.TERMINATIONS_MAX:
                all_in.set()
        assert all_in.wait(30)
        with guard:
            running -= 1
        return False

    monkeypatch.setattr(fleet.aws, "complete_job", complete)
    monkeypatch.setattr(fleet.aws, "delete_parameter", lambda _name: True)
    threads = [
        threading.Thread(target=fleet.terminate, args=(termination(),), kwargs={"attempt": 1})
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == tasks.TERMINATIONS_MAX


def test_schedules() -> None:
    found = {each.name: each.cron for each in tasks.schedules("q")}
    assert found == {
        "fleet-orphaned-instances": "*/15 * * * *",
        "fleet-stale-ssm": "0 * * * *",
        "fleet-old-jobs": "0 2 * * *",
        "fleet-pool-audit": "0 9 * * *",
    }
    with manual(app):
        app.run(app.declare("q"))
        for each in tasks.schedules("q"):
            app.run(app.schedules.add(each))


def test_partial_failures_are_errors_after_the_rest_is_done(
    cloud: Cloud, fleet: Fleet, jobs: Manual, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphans = [cloud.launch(), cloud.launch()]
    real = fleet.aws.terminate

    def terminate(ids: list[str]) -> tuple[list[str], dict[str, str]]:
        ended, _ = real([id_ for id_ in ids if id_ != orphans[0]])
        return ended, {orphans[0]: "AWS denies ec2:TerminateInstances"}

    monkeypatch.setattr(fleet.aws, "terminate", terminate)
    id_ = enqueue("housekeeping", housekeeping("orphaned_instances"))
    jobs.drain()
    assert cloud.states()[orphans[1]] == "terminated"
    assert cloud.total("OrphanedInstancesTerminated") == (1, 1)
    failure = look(id_).failures[-1].failure
    assert failure is not None
    assert f"1 failed, first {orphans[0]}: AWS denies" in failure.message
    assert cloud.locks() == set()


def test_a_third_failure_buries_where_the_queue_allows_more() -> None:
    class Attempt:
        attempt, last = 3, False

    attempt: Any = Attempt()
    with pytest.raises(Bury, match="attempt 3 of 3 failed: no"), tasks._three_attempts(attempt):
        raise LookupError("no")
