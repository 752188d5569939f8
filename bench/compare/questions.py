"""The fifteen aspects of docs/comparison.md, with three yes-or-no questions each.

The score of a product in an aspect is the number of its answers that are yes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Aspect:
    """`behind` says why Holdfast is behind the best product, where it is."""

    key: str
    title: str
    questions: tuple[str, str, str]
    behind: str = ""


ASPECTS: tuple[Aspect, ...] = (
    Aspect(
        "first-run",
        "First run",
        (
            "It needs no server beside it: a file is enough.",
            "There is no set-up step between the installation and the first job.",
            "A new worker has finished its first job after less than half a second of CPU time.",
        ),
        behind="A worker of Holdfast is a supervisor with child processes, which costs CPU time"
        " once, when it starts. In return, a handler that crashes or hangs costs no other job.",
    ),
    Aspect(
        "worker-killed",
        "A worker is killed",
        (
            "The job that it ran is run again, with default settings and without a person.",
            "This happens within a minute and a half.",
            "A job that kills its process every time is set aside, with the reason.",
        ),
    ),
    Aspect(
        "enqueue-durable",
        "Enqueue is durable",
        (
            "With default settings, jobs survive a SIGKILL of the store right after enqueue.",
            "With default settings, enqueue returns only after the job is synced to disk.",
            "A job can be enqueued in the transaction of the application's own database.",
        ),
    ),
    Aspect(
        "late-worker",
        "A worker comes back late",
        (
            "A job may run for any time: it is not started again while its worker is alive.",
            "A worker that was frozen cannot end a job that another worker runs by now.",
            "The handler gets a token, or learns of the loss, to protect effects elsewhere.",
        ),
    ),
    Aspect(
        "failures",
        "A job fails",
        (
            "It is retried with growing delays, by default or by an option of its task.",
            "When it failed for good, it is kept with its error, and one call puts it back.",
            "Its arguments can be edited before that.",
        ),
    ),
    Aspect(
        "flow",
        "Order and limits",
        (
            "Jobs of a group run one at a time and in order, over all workers.",
            "A limit bounds how many jobs run at once, over all workers.",
            "A limit bounds how many jobs start per second, over all workers.",
        ),
    ),
    Aspect(
        "fairness",
        "Fairness between tenants",
        (
            "In one queue, a tenant's first job does not wait for the backlog of another tenant.",
            "Tenants can have different shares.",
            "A quota bounds what a tenant may enqueue.",
        ),
    ),
    Aspect(
        "dependencies",
        "Dependencies",
        (
            "A job can wait for another job.",
            "A job can wait for many jobs.",
            "You choose what becomes of it when one of these fails.",
        ),
    ),
    Aspect(
        "schedules",
        "Schedules",
        (
            "Cron rules in a named time zone.",
            "With several schedulers running, each tick enqueues one job.",
            "Schedules can be added, changed and removed while the program runs.",
        ),
    ),
    Aspect(
        "types",
        "Types",
        (
            "A type checker finds a wrong argument of enqueue.",
            "The result of a job has the type that the task returns.",
            "Enqueue itself refuses an argument of a wrong type.",
        ),
    ),
    Aspect(
        "testing",
        "Testing",
        (
            "A test runs tasks without any service.",
            "A test moves the clock: delays, retries and schedules need no waiting.",
            "A test can see which jobs were enqueued, without running them.",
        ),
    ),
    Aspect(
        "operating",
        "Operating",
        (
            "There is a dashboard that is free of charge.",
            "It exports metrics, for Prometheus or OpenTelemetry.",
            "It, or OpenTelemetry itself, traces a job from its producer to its worker.",
        ),
    ),
    Aspect(
        "speed",
        "Speed",
        (
            "A job that does nothing costs less than a millisecond of CPU time.",
            "A single job starts within a tenth of a second of the call of enqueue.",
            "One call enqueues a thousand jobs.",
        ),
    ),
    Aspect(
        "reach",
        "Languages and systems",
        (
            "Programs in any language can enqueue jobs, by a documented protocol.",
            "Workers exist for more than one language, or can be written by that protocol.",
            "Workers run on Windows.",
        ),
        behind="Workers of Holdfast use process groups, signals and file locks of POSIX systems. On"
        " Windows, use WSL, or lease jobs over HTTP.",
    ),
    Aspect(
        "maturity",
        "Maturity",
        (
            "Its first release was more than five years ago.",
            "Its version is 1.0 or later.",
            "A company sells support for it, or an edition of it.",
        ),
        behind="Holdfast is new. Only its maintainers can tell you how it behaves in"
        " production, and few libraries support it. If that matters most, choose Celery or BullMQ.",
    ),
)
QUESTIONS: dict[str, str] = {
    f"{aspect.key}.{number}": question
    for aspect in ASPECTS
    for number, question in enumerate(aspect.questions, 1)
}
