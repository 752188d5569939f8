"""Chaos over workers whose jobs have limits, groups and parents, and the judge of these rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from holdfast import Holdfast
from holdfast.conformance.chaos.scenario import ChaosPlan, ChaosRun, read_lines
from holdfast.conformance.chaos.verify import ChaosFindings, JobRun, read_runs
from holdfast.core.model import FailureKind, Job, NewJob

CONCURRENCY_MAX = 5
TENANTS, GROUPS = 3, 6
SHARE = 0.25


class FlowChaos(ChaosRun):
    """A chaos run whose jobs have tenants with a limit, groups and parents."""

    def __init__(self, url: str, plan: ChaosPlan, home: Path) -> None:
        super().__init__(url, plan, home)
        self._enqueued: dict[str, NewJob] = {}
        self._kept: dict[str, Job] = {}

    async def run(self) -> ChaosFindings:
        findings = await super().run()
        runs = read_runs(read_lines(self._home / "runs.jsonl"))
        findings.violations += judge_flow(runs, self._enqueued, self._kept)
        return findings

    async def _inject_faults(self, app: Holdfast) -> None:
        await app.limit(self._queue.name, "tenants", concurrency=CONCURRENCY_MAX, key="{tenant}")
        await super()._inject_faults(app)

    async def _drain(self, app: Holdfast) -> dict[str, Job]:
        self._kept = await super()._drain(app)
        return self._kept

    def _job(self, app: Holdfast) -> NewJob:
        rng = self._dice
        fields: dict[str, Any] = {"tenant": f"tenant-{rng.randrange(TENANTS)}"}
        if rng.random() < SHARE:
            fields["group"] = f"group-{rng.randrange(GROUPS)}"
        recent = self._accepted[-20:]
        if recent and rng.random() < SHARE:
            parents = rng.sample(recent, min(len(recent), rng.randint(1, 3)))
            # No job may be cancelled: one that is neither done nor dead by policy counts as lost.
            fields |= {"after": tuple(parents), "parent_death": "run"}
        job = replace(super()._job(app), **fields)
        self._enqueued[job.id] = job
        return job


def judge_flow(
    runs: Iterable[JobRun], enqueued: Mapping[str, NewJob], store: Mapping[str, Job]
) -> list[str]:
    """Return the violations. Runs that lost their lease are ignored: other jobs may pass them."""
    held = [run for run in runs if run.job in enqueued and not _is_lost(run, store.get(run.job))]
    by_job: dict[str, list[JobRun]] = defaultdict(list)
    for run in held:
        by_job[run.job].append(run)
    return [
        *_limit_violations(held, enqueued),
        *_group_violations(by_job, enqueued, store),
        *_parent_violations(by_job, enqueued),
    ]


def _limit_violations(held: list[JobRun], enqueued: Mapping[str, NewJob]) -> Iterator[str]:
    by_tenant: dict[str | None, list[JobRun]] = defaultdict(list)
    for run in held:
        by_tenant[enqueued[run.job].tenant].append(run)
    for tenant, runs in by_tenant.items():
        current: list[JobRun] = []
        for run in sorted(runs, key=lambda each: each.begin_ns):
            current = [other for other in current if other.last_ns > run.begin_ns] + [run]
            if len(current) > CONCURRENCY_MAX:
                ids = ", ".join(each.job for each in current)
                yield f"{len(current)} jobs of {tenant} ran at once, limit {CONCURRENCY_MAX}: {ids}"


def _group_violations(
    by_job: Mapping[str, list[JobRun]], enqueued: Mapping[str, NewJob], store: Mapping[str, Job]
) -> Iterator[str]:
    members: dict[str, list[str]] = defaultdict(list)
    for id_ in sorted(by_job.keys() & store.keys(), key=lambda each: store[each].seq):
        if (group := enqueued[id_].group) is not None:
            members[group].append(id_)
    for group, ids in members.items():
        for before, after in pairwise(ids):
            if _end_ns(by_job[before]) > by_job[after][0].begin_ns:
                yield f"job {after} of {group} began before {before}, which came first, was over"


def _parent_violations(
    by_job: Mapping[str, list[JobRun]], enqueued: Mapping[str, NewJob]
) -> Iterator[str]:
    for id_, runs in by_job.items():
        for parent in enqueued[id_].after:
            if _end_ns(by_job.get(parent, [])) > runs[0].begin_ns:
                yield f"job {id_} began before its parent {parent} was over"


def _end_ns(runs: list[JobRun]) -> int:
    return max((run.last_ns for run in runs), default=0)


def _is_lost(run: JobRun, job: Job | None) -> bool:
    return any(
        event.attempt == run.attempt
        and (
            (event.failure is not None and event.failure.kind is FailureKind.OVERDUE)
            or "lost its lease" in event.text
        )
        for event in (job.events if job else ())
    )
