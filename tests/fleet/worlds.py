"""Random worlds for the planner: what is true, and what of it was observed.

An observation loses facts, as real ones do: a tag, a launch time, a status, the instance of a job,
a whole listing. It never shows anything that is not true.
"""

from random import Random
from typing import NamedTuple

from holdfast_fleet.model import (
    QUEUED,
    RUNNING,
    TERMINAL,
    Instance,
    JobRecord,
    Parameter,
    parameter_name,
)

NOW = 2_000_000_000
MAX_RUNTIME_S = 6 * 3600
_AGES = (0, 60, 3_000, 3_700, 21_500, 22_100, 22_300, 90_000, 10_000_000)
_GONE = ("terminated", "absent")
_STATES = ("running", "pending", "stopped", "stopping", "shutting-down", *_GONE)


class TrueInstance(NamedTuple):
    id: str
    state: str
    age_s: int
    is_managed: bool
    has_job: bool


class World(NamedTuple):
    truth: dict[str, TrueInstance]
    blind: frozenset[str]
    """Instances of which a fact was lost."""
    instances: list[Instance]
    """As EC2 listed them."""
    jobs: list[JobRecord] | None
    parameters: list[Parameter]
    listed: dict[str, Instance] | None
    """The instances of the parameters, as EC2 listed them."""


def random_world(random: Random) -> World:
    truth = {}
    for number in range(random.randrange(1, 6)):
        each = TrueInstance(
            id=f"i-{number:017x}",
            state=random.choice(_STATES),
            age_s=random.choice(_AGES),
            is_managed=random.random() < 0.8,
            has_job=random.random() < 0.3,
        )
        truth[each.id] = each
    blind: set[str] = set()
    instances = [_observed(random, each, blind) for each in truth.values() if _is_listed(each)]
    # A page may repeat an instance, as it was a moment before.
    instances += [
        Instance(id=each.id, state=each.state, is_managed=each.is_managed, launched_at=None)
        for each in instances
        if random.random() < 0.05
    ]
    blind |= {each.id for each in instances if each.launched_at is None}
    listed = {each.id: each for each in instances if not _is_unlisted_yet(truth[each.id], random)}
    return World(
        truth=truth,
        blind=frozenset(blind),
        instances=instances,
        jobs=_records(random, truth) if random.random() < 0.9 else None,
        parameters=_parameters(random, truth),
        listed=listed if random.random() < 0.9 else None,
    )


def _is_listed(each: TrueInstance) -> bool:
    return each.state != "absent"


def _is_unlisted_yet(each: TrueInstance, random: Random) -> bool:
    """EC2 is eventually consistent: it may not list what was launched within the last minutes."""
    return each.age_s < 600 and random.random() < 0.5


def _observed(random: Random, each: TrueInstance, blind: set[str]) -> Instance:
    state: str | None = each.state
    launched_at: int | None = NOW - each.age_s
    is_managed = each.is_managed
    if random.random() < 0.1:
        lost = random.choice(("state", "launched_at", "tag"))
        blind.add(each.id)
        state = None if lost == "state" else state
        launched_at = None if lost == "launched_at" else launched_at
        is_managed = is_managed and lost != "tag"
    return Instance(id=each.id, state=state, is_managed=is_managed, launched_at=launched_at)


def _records(random: Random, truth: dict[str, TrueInstance]) -> list[JobRecord]:
    found = []
    for each in truth.values():
        if each.has_job:
            status = random.choice((RUNNING, RUNNING, QUEUED, "novel", None))
            # Only a record that waits for an instance may have none; elsewhere the field was lost.
            is_lost = status != QUEUED and random.random() < 0.1
            id_ = None if is_lost else each.id
            found.append(JobRecord(job_id=f"active-{each.id}", instance_id=id_, status=status))
        if random.random() < 0.5:
            over = random.choice(TERMINAL)
            found.append(JobRecord(job_id=f"over-{each.id}", instance_id=each.id, status=over))
    if random.random() < 0.3:
        found.append(JobRecord(job_id="waits", status=QUEUED))
    random.shuffle(found)
    return found


def _parameters(random: Random, truth: dict[str, TrueInstance]) -> list[Parameter]:
    found = []
    for each in truth.values():
        # It is written after the launch, perhaps again later; its time may be unknown.
        age_s = random.randrange(each.age_s + 1)
        modified_at = None if random.random() < 0.1 else NOW - age_s
        name = parameter_name(each.id)
        if random.random() < 0.1:
            name = random.choice((name.upper(), name + "/x", name.replace("config", "secret")))
        found.append(Parameter(name=name, modified_at=modified_at))
    return found
