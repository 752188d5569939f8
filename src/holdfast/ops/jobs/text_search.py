"""Finds jobs whose payload or errors contain a text. They have no index: each job is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import msgspec

from holdfast.core.model import Job, State
from holdfast.engines.base import Engine

EXAMINED_MAX = 2_000
"""The number of jobs that one request may examine."""


class TextSearch:
    """Examines jobs page by page for a text, upper and lower case being different. A text in JSON
    is also found in its escaped forms. `examined` and `size` count the jobs and bytes read so far,
    and `last` is the last job read."""

    def __init__(self, engine: Engine, text: str) -> None:
        self.examined: int = 0
        self.size: int = 0
        self.last: Job | None = None
        self._engine = engine
        self._text = text
        escaped = (msgspec.json.encode(text)[1:-1], json.dumps(text)[1:-1].encode())
        self._needles = frozenset((text.encode(), *escaped))

    async def matching(self, jobs: Sequence[Job]) -> list[Job]:
        """Those of the listed jobs that contain the text, in the same order."""
        found = {job.id for job in jobs if self._in_payload(job)}
        failed = [job.id for job in jobs if job.id not in found and _may_have_failed(job)]
        for job in await asyncio.gather(*map(self._engine.get, failed)):
            if job is None:
                continue  # It was deleted since it was listed.
            self.size += len(job.payload) + len(job.result or b"") + len(job.output or b"")
            if self._in_errors(job):
                found.add(job.id)
        self.examined += len(jobs)
        self.size += sum(len(job.payload) for job in jobs)
        self.last = jobs[-1] if jobs else self.last
        return [job for job in jobs if job.id in found]

    def _in_payload(self, job: Job) -> bool:
        return any(needle in job.payload for needle in self._needles)

    def _in_errors(self, job: Job) -> bool:
        failures = (event.failure for event in job.failures)
        return any(each and self._text in f"{each.type}\n{each.message}" for each in failures)


def _may_have_failed(job: Job) -> bool:
    """False if a listed job can have no failures: it has run at most its current or only time."""
    runs = 1 if job.state in (State.LEASED, State.DONE) else 0
    return job.attempt > runs or bool(job.crashes or job.redrives) or job.reason is not None
