"""What `enqueue` gives back: a job by its id, and its result when there is one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.core.model import Job, State
from holdfast.durations import Duration, to_ms
from holdfast.errors import JobCancelled, JobFailed, JobGone, ResultTimeout, UsageError

if TYPE_CHECKING:
    from holdfast.tasks import Task

Answer = TypeVar("Answer")

_FIRST_S, _GROWTH, _MOST_S = 0.01, 1.5, 1.0


class JobHandle(Generic[Answer]):
    """`duplicate` says that an earlier job with the same key or id stands for this one."""

    def __init__(self, task: Task[Answer], id: str, *, duplicate: bool = False) -> None:
        self._task = task
        self.id = id
        self.duplicate = duplicate

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} of {self._task.name}>"

    def job(self) -> Job | None:
        """The whole job as it stands; None when it was deleted."""
        return self._task.app.run(self._task.app.get(self.id), instead="handle.ajob()")

    async def ajob(self) -> Job | None:
        return await self._task.app.arun(self._task.app.get(self.id))

    def result(self, timeout: Duration | None = None) -> Answer:
        """Wait until the job is done, and give what its handler returned.

        JobFailed, JobCancelled or JobGone say that there is no result and will be none;
        ResultTimeout, which is a TimeoutError too, that it took too long: the job goes on.
        """
        return self._task.app.run(self._wait(timeout), instead="handle.aresult()")

    # The same word as in `result`: it ends with an error that names the job.
    async def aresult(self, timeout: Duration | None = None) -> Answer:  # noqa: ASYNC109
        return await self._task.app.arun(self._wait(timeout))

    async def _wait(self, most: Duration | None) -> Answer:
        until = None
        if most is not None:
            until = time.monotonic() + to_ms("timeout", most, UsageError) / 1000
        pause_s = _FIRST_S
        while True:
            job = await self._task.app.get(self.id)
            if is_over(job, self.id):
                assert job is not None
                answer: Answer = self._task.signature.read_result(job.result)
                return answer
            left_s = _MOST_S if until is None else until - time.monotonic()
            if left_s <= 0:
                raise ResultTimeout(f"job {self.id} is still {job.state if job else 'unknown'}")
            await self._task.app.home.pause(min(pause_s, left_s))
            pause_s = min(pause_s * _GROWTH, _MOST_S)


def is_over(job: Job | None, id: str) -> bool:
    """True when it is done; raises when it never will be."""
    if job is None:
        raise JobGone(f"job {id} is not there any more: it was deleted, or kept no longer")
    if job.state is State.DONE:
        return True
    if job.state is State.CANCELLED:
        raise JobCancelled(f"job {id} was cancelled", job)
    # One that was moved to a dead queue waits there, with the reason why.
    if job.state is State.DEAD or job.reason is not None:
        raise JobFailed(f"job {id} is dead ({job.reason}){_last_words(job)}", job)
    return False


def _last_words(job: Job) -> str:
    for event in reversed(job.failures):
        failure: Any = event.failure
        return f": {': '.join(filter(None, (failure.type, failure.message)))}"
    return ""
