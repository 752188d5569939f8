"""Decisions of the fleet: facts → actions. Pure, and nothing unknown is ever removed.

A fact that could not be read is None. Each guard below keeps its subject; only what passes all of
them is removed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from holdfast_fleet.model import (
    QUEUED,
    DeleteJob,
    DeleteParameter,
    Instance,
    JobRecord,
    Parameter,
    Plan,
    Pool,
    PoolReport,
    Prices,
    SkippedSubject,
    TerminateInstance,
    instance_of,
    parse_time,
)

GRACE_S: Final = 10 * 60
"""Added to the longest runtime before an instance without a job is an orphan."""
UNSEEN_S: Final = 3600
"""EC2 may not list an instance in its first minutes. A parameter so old has an instance that it
would list."""
RETENTION_S: Final = 7 * 24 * 3600
HOURS_OF_MONTH: Final = 730
LIVING: Final = frozenset({"running", "pending"})


def plan_orphans(
    instances: Sequence[Instance],
    jobs: Iterable[JobRecord] | None,
    *,
    now: int,
    max_runtime_s: int,
) -> Plan:
    """Terminate managed instances that are too old and have no job. `jobs` are all records that are
    not terminal; None if they could not all be read."""
    active = None if jobs is None else [job for job in jobs if not job.is_terminal]
    actions: dict[str, TerminateInstance] = {}
    kept: dict[str, SkippedSubject] = {}
    for each in instances:
        why = _why_alive(each, active, now=now, old_s=max_runtime_s + GRACE_S)
        if why is not None:
            kept.setdefault(each.id, SkippedSubject(each.id, why))
        else:
            actions[each.id] = TerminateInstance(each.id, "no job, and past the longest runtime")
    # An instance that is described twice must be an orphan both times.
    chosen = tuple(action for id_, action in actions.items() if id_ not in kept)
    return Plan(actions=chosen, kept=tuple(kept.values()))


def _why_alive(
    instance: Instance, active: Sequence[JobRecord] | None, *, now: int, old_s: int
) -> str | None:
    """Why an instance is left alive; None if it is an orphan."""
    if not instance.is_managed:
        return "it is not managed by the fleet"
    if instance.state not in LIVING:
        return f"its state is {instance.state or 'unknown'}"
    if instance.launched_at is None:
        return "its launch time is unknown"
    if now - instance.launched_at <= old_s:
        return "it is not old enough"
    if active is None:
        return "the job records could not all be read"
    for job in active:
        if job.instance_id == instance.id:
            return f"it has job {job.job_id}"
        if job.instance_id is None and job.status != QUEUED:
            return f"job {job.job_id} runs on an unknown instance"
    return None


def plan_parameters(
    parameters: Sequence[Parameter], instances: Mapping[str, Instance] | None, *, now: int
) -> Plan:
    """Delete parameters of instances that are certainly gone. `instances` are those of the
    parameters that EC2 still lists, in any state; None if they could not all be read."""
    actions: list[DeleteParameter] = []
    kept: list[SkippedSubject] = []
    for each in parameters:
        why = _why_in_use(each, instances, now=now)
        if why is not None:
            kept.append(SkippedSubject(each.name, why))
        else:
            actions.append(DeleteParameter(each.name, "its instance is gone"))
    return Plan(actions=tuple(actions), kept=tuple(kept))


def _why_in_use(
    parameter: Parameter, instances: Mapping[str, Instance] | None, *, now: int
) -> str | None:
    """Why a parameter is kept; None if its instance is gone."""
    id_ = instance_of(parameter.name)
    if id_ is None:
        return "its name is not that of a runner's configuration"
    if instances is None:
        return "the instances could not all be read"
    instance = instances.get(id_)
    if instance is not None:
        if instance.state == "terminated":
            return None
        return f"instance {id_} is {instance.state or 'in an unknown state'}"
    if parameter.modified_at is None:
        return "its age is unknown"
    if now - parameter.modified_at <= UNSEEN_S:
        return f"instance {id_} may be too new to be listed"
    return None


def plan_old_jobs(jobs: Iterable[JobRecord], *, now: int) -> Plan:
    """Delete terminal records that were completed longer ago than the retention."""
    actions: list[DeleteJob] = []
    kept: list[SkippedSubject] = []
    for job in jobs:
        completed_at = parse_time(job.completed_at)
        if not job.is_terminal:
            kept.append(SkippedSubject(job.job_id, f"its status is {job.status or 'unknown'}"))
        elif completed_at is None:
            kept.append(SkippedSubject(job.job_id, "its completion time is unknown"))
        elif now - completed_at <= RETENTION_S:
            kept.append(SkippedSubject(job.job_id, "it is not old enough"))
        else:
            actions.append(DeleteJob(job.job_id, f"completed at {job.completed_at}"))
    return Plan(actions=tuple(actions), kept=tuple(kept))


def audit_pools(
    pools: Sequence[Pool],
    instances: Sequence[Instance] | None,
    jobs: Iterable[JobRecord] | None,
    prices: Prices,
    *,
    hours: float,
) -> list[PoolReport]:
    """The report of each pool, by name. Unknown values stay None, also in sums and costs."""
    by_pool: defaultdict[str, dict[str, Instance]] = defaultdict(dict)
    for each in instances or ():
        if each.is_managed and each.pool is not None:
            by_pool[each.pool][each.id] = each
    active = None if jobs is None else [job for job in jobs if not job.is_terminal]
    return [
        _audit(pool, None if instances is None else by_pool[pool.name], active, prices, hours)
        for pool in sorted(pools, key=lambda pool: pool.name)
    ]


def _audit(
    pool: Pool,
    instances: Mapping[str, Instance] | None,
    active: Sequence[JobRecord] | None,
    prices: Prices,
    hours: float,
) -> PoolReport:
    report = PoolReport(pool=pool.name, hours=hours)
    if instances is None or any(each.state is None for each in instances.values()):
        return report
    states = [each.state for each in instances.values()]
    running, stopped = states.count("running"), states.count("stopped")
    assigned = _assigned(instances, active)
    hourly = prices.hourly.get(pool.instance_type or "")
    idle_cost = compute_cost = utilization = None
    if pool.volume_gb is not None and prices.gb_month is not None:
        idle_cost = stopped * pool.volume_gb * prices.gb_month / HOURS_OF_MONTH * hours
    if hourly is not None:
        compute_cost = running * hourly * hours
    if assigned is not None and running + stopped > 0:
        utilization = assigned / (running + stopped)
    return PoolReport(
        pool=pool.name,
        hours=hours,
        running=running,
        stopped=stopped,
        idle=None if assigned is None else running - assigned,
        assigned=assigned,
        idle_cost=idle_cost,
        compute_cost=compute_cost,
        utilization=utilization,
    )


def _assigned(instances: Mapping[str, Instance], active: Sequence[JobRecord] | None) -> int | None:
    """How many running instances have a job; None if a running job may be on any of them."""
    if active is None:
        return None
    if any(job.instance_id is None and job.status != QUEUED for job in active):
        return None
    busy = {job.instance_id for job in active}
    return sum(each.state == "running" and each.id in busy for each in instances.values())
