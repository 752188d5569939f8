"""The planner: single rules, and random worlds in which nothing alive or unknown is removed.

HOLDFAST_EXAMPLES=100000 ./hf test tests/fleet/test_plan.py -k worlds
"""

import os
from random import Random

import pytest

from holdfast_fleet.model import (
    DeleteJob,
    DeleteParameter,
    Instance,
    JobRecord,
    Parameter,
    Pool,
    PoolReport,
    Prices,
    TerminateInstance,
    instance_of,
    iso_of,
    parameter_name,
)
from holdfast_fleet.plan import (
    GRACE_S,
    RETENTION_S,
    UNSEEN_S,
    audit_pools,
    plan_old_jobs,
    plan_orphans,
    plan_parameters,
)
from tests.fleet.worlds import MAX_RUNTIME_S, NOW, World, random_world

WORLDS = int(os.environ.get("HOLDFAST_EXAMPLES", "10000"))
OLD = NOW - MAX_RUNTIME_S - GRACE_S - 1
ID = "i-0123456789abcdef0"
GONE_STATES = ("terminated", "absent")


def test_random_worlds() -> None:
    """Nothing that lives with a job, or of which anything is unknown, is terminated; no parameter
    of a living instance is deleted. Some are, or the planner would be useless."""
    terminated = deleted = 0
    for seed in range(WORLDS):
        world = random_world(Random(seed))
        terminated += check_orphans(world, seed)
        deleted += check_parameters(world, seed)
    assert terminated > WORLDS / 10
    assert deleted > WORLDS / 10


def check_orphans(world: World, seed: int) -> int:
    plan = plan_orphans(world.instances, world.jobs, now=NOW, max_runtime_s=MAX_RUNTIME_S)
    for action in plan.actions:
        assert isinstance(action, TerminateInstance)
        truth = world.truth[action.instance_id]
        where = f"world {seed}: {truth}"
        assert not truth.has_job, where
        assert truth.is_managed, where
        assert truth.state in ("running", "pending"), where
        assert truth.age_s > MAX_RUNTIME_S + GRACE_S, where
        assert truth.id not in world.blind, where
        assert world.jobs is not None, where
    return len(plan.actions)


def check_parameters(world: World, seed: int) -> int:
    plan = plan_parameters(world.parameters, world.listed, now=NOW)
    for action in plan.actions:
        assert isinstance(action, DeleteParameter)
        id_ = instance_of(action.name)
        assert id_ is not None, f"world {seed}: {action.name}"
        truth = world.truth[id_]
        assert truth.state in GONE_STATES, f"world {seed}: {truth}"
        assert world.listed is not None, f"world {seed}"
    return len(plan.actions)


def orphan(**fields: object) -> Instance:
    given = {"id": ID, "state": "running", "is_managed": True, "launched_at": OLD, **fields}
    return Instance(**given)  # type: ignore[arg-type]


def orphans(*instances: Instance, jobs: list[JobRecord] | None = None) -> list[str]:
    plan = plan_orphans(
        instances, [] if jobs is None else jobs, now=NOW, max_runtime_s=MAX_RUNTIME_S
    )
    assert {each.id for each in instances} == {
        *(each.instance_id for each in plan.actions if isinstance(each, TerminateInstance)),
        *(each.subject for each in plan.kept),
    }
    return [each.instance_id for each in plan.actions if isinstance(each, TerminateInstance)]


def test_an_orphan_is_terminated() -> None:
    assert orphans(orphan()) == [ID]
    assert orphans(orphan(state="pending")) == [ID]
    over = JobRecord(job_id="1", instance_id=ID, status="completed")
    waits = JobRecord(job_id="2", status="queued")
    elsewhere = JobRecord(job_id="3", instance_id="i-0123456789abcdef1", status="running")
    assert orphans(orphan(), jobs=[over, waits, elsewhere]) == [ID]


@pytest.mark.parametrize(
    "instance",
    [
        orphan(is_managed=False),
        orphan(state="stopped"),
        orphan(state="shutting-down"),
        orphan(state=None),
        orphan(launched_at=None),
        orphan(launched_at=OLD + 1),
        orphan(launched_at=NOW + 10**6),
    ],
)
def test_an_instance_that_is_left_alive(instance: Instance) -> None:
    assert orphans(instance) == []
    assert orphans(orphan(), instance) == [], "it is described twice, differently"


@pytest.mark.parametrize(
    "job",
    [
        JobRecord(job_id="1", instance_id=ID, status="running"),
        JobRecord(job_id="1", instance_id=ID, status="queued"),
        JobRecord(job_id="1", instance_id=ID, status="novel"),
        JobRecord(job_id="1", instance_id=ID),
        JobRecord(job_id="1", status="running"),
        JobRecord(job_id="1"),
    ],
)
def test_a_job_keeps_an_instance_alive(job: JobRecord) -> None:
    assert orphans(orphan(), jobs=[job]) == []


def test_unread_records_keep_every_instance_alive() -> None:
    plan = plan_orphans([orphan()], None, now=NOW, max_runtime_s=MAX_RUNTIME_S)
    assert plan.actions == ()
    assert plan.kept[0].why == "the job records could not all be read"


@pytest.mark.parametrize(
    ("age_s", "state", "is_deleted"),
    [
        (0, "terminated", True),
        (10**6, "shutting-down", False),
        (10**6, "running", False),
        (10**6, "stopped", False),
        (10**6, None, False),
        (UNSEEN_S + 1, "absent", True),
        (UNSEEN_S, "absent", False),
        (None, "absent", False),
        (None, "terminated", True),
    ],
)
def test_a_parameter(age_s: int | None, state: str | None, is_deleted: bool) -> None:
    name = parameter_name(ID)
    parameter = Parameter(name=name, modified_at=None if age_s is None else NOW - age_s)
    listed = {} if state == "absent" else {ID: Instance(id=ID, state=state)}
    plan = plan_parameters([parameter], listed, now=NOW)
    assert [each.name for each in plan.actions if isinstance(each, DeleteParameter)] == (
        [name] if is_deleted else []
    )
    assert plan_parameters([parameter], None, now=NOW).actions == ()


@pytest.mark.parametrize(
    ("status", "completed_at", "is_deleted"),
    [
        ("completed", iso_of(NOW - RETENTION_S - 1), True),
        ("interrupted", iso_of(NOW - RETENTION_S - 1), True),
        ("failed", iso_of(NOW - RETENTION_S), False),
        ("running", iso_of(NOW - RETENTION_S - 1), False),
        (None, iso_of(NOW - RETENTION_S - 1), False),
        ("timeout", None, False),
        ("timeout", "long ago", False),
        ("timeout", "2001-01-01T00:00:00", False),
        ("timeout", "2001-01-01T00:00:00+02:00", True),
    ],
)
def test_an_old_job(status: str | None, completed_at: str | None, is_deleted: bool) -> None:
    job = JobRecord(job_id="1", status=status, completed_at=completed_at)
    plan = plan_old_jobs([job], now=NOW)
    assert [each.job_id for each in plan.actions if isinstance(each, DeleteJob)] == (
        ["1"] if is_deleted else []
    )
    assert len(plan.kept) == (0 if is_deleted else 1)


def audit(**changes: object) -> PoolReport:
    """The audit of a pool with two running instances, one with a job, and two stopped ones."""
    states = ("running", "running", "stopped", "stopped", "terminated")
    instances = [
        Instance(id=f"i-{number:08x}", state=state, is_managed=True, pool="blue")
        for number, state in enumerate(states)
    ]
    strangers = [
        Instance(id="i-000000aa", state="running", is_managed=True, pool="red"),
        Instance(id="i-000000ab", state="running", is_managed=False, pool="blue"),
    ]
    given: dict[str, object] = {
        "pools": [Pool(name="blue", instance_type="t4g.medium", volume_gb=30)],
        "instances": [*instances, *strangers],
        "jobs": [JobRecord(job_id="1", instance_id="i-00000000", status="running")],
        "prices": Prices(gb_month=0.08, hourly={"t4g.medium": 0.0336}),
        "hours": 24.0,
        **changes,
    }
    [report] = audit_pools(**given)  # type: ignore[arg-type]
    return report


def test_a_pool() -> None:
    report = audit()
    assert (report.running, report.stopped, report.idle, report.assigned) == (2, 2, 1, 1)
    assert report.idle_cost == pytest.approx(2 * 30 * 0.08 / 730 * 24)
    assert report.compute_cost == pytest.approx(2 * 0.0336 * 24)
    assert report.utilization == 0.25


def test_what_is_unknown_of_a_pool_stays_unknown() -> None:
    nothing = PoolReport(pool="blue", hours=24)
    assert audit(instances=None) == nothing
    assert audit(instances=[Instance(id="i-1", is_managed=True, pool="blue")]) == nothing
    no_jobs = audit(jobs=None)
    assert (no_jobs.running, no_jobs.idle, no_jobs.utilization) == (2, None, None)
    assert audit(jobs=[JobRecord(job_id="1", status="running")]).idle is None
    assert audit(prices=Prices()).compute_cost is None
    assert audit(prices=Prices()).idle_cost is None
    bare = audit(pools=[Pool(name="blue")])
    assert (bare.idle_cost, bare.compute_cost, bare.utilization) == (None, None, 0.25)
    empty = audit(instances=[])
    assert (empty.running, empty.idle_cost, empty.utilization) == (0, 0, None)
