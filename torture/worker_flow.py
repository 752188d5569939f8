"""The storm over workers with jobs that bound each other: by a limit, in groups, after parents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from holdfast import Holdfast
from holdfast.chaos.judge import Findings, Run, read_runs
from holdfast.chaos.storm import Storm, Weather, read_lines
from holdfast.core.model import FailureKind, Job, NewJob

TOGETHER_MAX = 5
TENANTS, GROUPS = 3, 6
SHARE = 0.25


class FlowStorm(Storm):
    def __init__(self, url: str, weather: Weather, home: Path) -> None:
        super().__init__(url, weather, home)
        self._told: dict[str, NewJob] = {}
        self._kept: dict[str, Job] = {}

    async def run(self) -> Findings:
        findings = await super().run()
        runs = read_runs(read_lines(self._home / "runs.jsonl"))
        findings.violations += judge_flow(runs, self._told, self._kept)
        return findings

    async def _rage(self, app: Holdfast) -> None:
        await app.limit(self._queue.name, "tenants", concurrency=TOGETHER_MAX, key="{tenant}")
        await super()._rage(app)

    async def _drain(self, app: Holdfast) -> dict[str, Job]:
        self._kept = await super()._drain(app)
        return self._kept

    def _job(self, app: Holdfast) -> NewJob:
        dice = self._dice
        said: dict[str, Any] = {"tenant": f"tenant-{dice.randrange(TENANTS)}"}
        if dice.random() < SHARE:
            said["group"] = f"group-{dice.randrange(GROUPS)}"
        lately = self._accepted[-20:]
        if lately and dice.random() < SHARE:
            parents = dice.sample(lately, min(len(lately), dice.randint(1, 3)))
            # Nobody is cancelled: a job that is not done, nor dead by policy, counts as lost.
            said |= {"after": tuple(parents), "parent_death": "run"}
        job = replace(super()._job(app), **said)
        self._told[job.id] = job
        return job


def judge_flow(
    runs: Iterable[Run], told: Mapping[str, NewJob], store: Mapping[str, Job]
) -> list[str]:
    """Pure. A run that lost its lease counts for nothing: whoever waited for it may go."""
    held = [run for run in runs if run.job in told and not _is_lost(run, store.get(run.job))]
    by_job: dict[str, list[Run]] = defaultdict(list)
    for run in held:
        by_job[run.job].append(run)
    return [*_crowds(held, told), *_groups(by_job, told, store), *_families(by_job, told)]


def _crowds(held: list[Run], told: Mapping[str, NewJob]) -> Iterator[str]:
    by_tenant: dict[str | None, list[Run]] = defaultdict(list)
    for run in held:
        by_tenant[told[run.job].tenant].append(run)
    for tenant, runs in by_tenant.items():
        current: list[Run] = []
        for run in sorted(runs, key=lambda each: each.begin_ns):
            current = [other for other in current if other.last_ns > run.begin_ns] + [run]
            if len(current) > TOGETHER_MAX:
                ids = ", ".join(each.job for each in current)
                yield f"{len(current)} jobs of {tenant} ran at once, of {TOGETHER_MAX}: {ids}"


def _groups(
    by_job: Mapping[str, list[Run]], told: Mapping[str, NewJob], store: Mapping[str, Job]
) -> Iterator[str]:
    members: dict[str, list[str]] = defaultdict(list)
    for id_ in sorted(by_job.keys() & store.keys(), key=lambda each: store[each].seq):
        if (group := told[id_].group) is not None:
            members[group].append(id_)
    for group, ids in members.items():
        for before, after in pairwise(ids):
            if _end_ns(by_job[before]) > by_job[after][0].begin_ns:
                yield f"job {after} of {group} began before {before}, which came first, was over"


def _families(by_job: Mapping[str, list[Run]], told: Mapping[str, NewJob]) -> Iterator[str]:
    for id_, runs in by_job.items():
        for parent in told[id_].after:
            if _end_ns(by_job.get(parent, [])) > runs[0].begin_ns:
                yield f"job {id_} began before its parent {parent} was over"


def _end_ns(runs: list[Run]) -> int:
    return max((run.last_ns for run in runs), default=0)


def _is_lost(run: Run, job: Job | None) -> bool:
    return any(
        event.attempt == run.attempt
        and (
            (event.failure is not None and event.failure.kind is FailureKind.OVERDUE)
            or "lost its lease" in event.text
        )
        for event in (job.events if job else ())
    )
