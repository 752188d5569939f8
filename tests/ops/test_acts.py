"""Acts on many jobs: their words, their steps, the bounds of their number and of their plans."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.model import JobFilter, Reason, Record, State, WaitingKind
from holdfast.errors import InvalidJob, UsageError, WrongState
from holdfast.ops.jobs.act_views import act_details, notes, says
from holdfast.ops.jobs.acts import (
    ACTS_MAX,
    JOBS_PER_LIST,
    ActPlan,
    ActRecord,
    ActState,
    StepResult,
    begin_step,
    check_plan,
    end_step,
    is_late,
    oldest_to_remove,
)
from holdfast.ops.records import Stored

WAITING = {State.WAITING: 1_234}
ALL_FIELDS = (
    "Delete 1,234 done jobs on worker w with reason crashed with fingerprint f with parent p"
    f' with label region=eu (to be retried) with "{"s" * 80}…" in id, task, key or tenant'
    " created since 1970-01-01T00:00:01Z created before 1970-01-01T00:00:02Z"
)


def an_act(count: int = 1_234, **fields: Any) -> ActRecord:
    plan = fields.pop("plan", ActPlan(act="cancel", wanted=JobFilter(queue="mail")))
    return ActRecord(id="a", plan=plan, state=ActState.COUNTED, count=count, **fields)


@pytest.mark.parametrize(
    ("plan", "fields", "words"),
    [
        (
            ActPlan(act="cancel", wanted=JobFilter(queue="mail")),
            {"states": WAITING},
            "Cancel 1,234 waiting jobs in queue mail",
        ),
        (
            ActPlan(act="cancel"),
            {"states": {State.WAITING: 1_200, State.LEASED: 34}},
            "Cancel 1,234 jobs",
        ),
        (
            ActPlan(act="retry", wanted=JobFilter(ids=("a",)), delay_ms=60_000),
            {"count": 1, "states": {State.DEAD: 1}},
            "Put back 1 selected dead job, after 1m",
        ),
        (
            ActPlan(act="expedite", wanted=JobFilter(task="send", tenant="acme")),
            {"count": 0},
            "Expedite 0 jobs of task send of tenant acme",
        ),
        (
            ActPlan(act="move", wanted=JobFilter(queue="mail"), queue="bulk"),
            {"states": WAITING, "capped": True},
            "Move the newest 1,234 waiting jobs in queue mail to queue bulk",
        ),
        (
            ActPlan(act="delay", wanted=JobFilter(group="g", key="k"), delay_ms=7_200_000),
            {"states": WAITING},
            "Delay 1,234 waiting jobs of group g with key k by 2h",
        ),
        (
            ActPlan(act="edit", patch=b"{}", priority=5, labels={}, contains="x\x1b[2J"),
            {"states": WAITING},
            'Edit the payload, priority and labels of 1,234 waiting jobs containing "x\\x1b[2J"',
        ),
        (
            ActPlan(
                act="delete",
                wanted=JobFilter(
                    reason=Reason.CRASHED,
                    fingerprint="f",
                    parent="p",
                    worker="w",
                    labels={"region": "eu"},
                    search="s" * 100,
                    waiting=(WaitingKind.FAILED,),
                    created_from=1_000,
                    created_before=2_000,
                ),
            ),
            {"states": {State.DONE: 1_234}},
            ALL_FIELDS,
        ),
    ],
    ids=["queue", "every", "ids", "empty", "move", "delay", "edit", "all-fields"],
)
def test_an_act_in_words(plan: ActPlan, fields: dict[str, Any], words: str) -> None:
    assert says(an_act(plan=plan, **fields)) == words


def test_people_are_told_about_running_jobs_and_about_those_left_out() -> None:
    running = {State.WAITING: 2, State.LEASED: 1}
    cancel = an_act(3, states=running, capped=True)
    assert [note.partition(":")[0] for note in notes(cancel)] == [
        "1 job of these is running",
        "More jobs match",
    ]
    delete = an_act(3, states=running, plan=ActPlan(act="delete", force=True))
    assert [note.partition(":")[0] for note in notes(delete)] == [
        "1 job of these is running",
        "Deleted jobs cannot be restored.",
    ]
    assert notes(an_act(states=WAITING)) == ()


def test_the_view_shows_no_values_that_an_edit_writes() -> None:
    plan = ActPlan(act="edit", patch=b'{"password":"hunter2"}', headers={"auth": "hunter2"})
    assert "hunter2" not in repr(act_details(an_act(plan=plan)))


@pytest.mark.parametrize(
    ("patch", "steps"), [(None, [JOBS_PER_LIST, 23]), (b"{}", [100] * 5 + [23])]
)
def test_steps_cover_all_jobs(patch: bytes | None, steps: list[int]) -> None:
    act = an_act(523, plan=ActPlan(act="edit", priority=1, patch=patch))
    act = replace(act, state=ActState.RUNNING)
    taken = []
    while act.left:
        assert act.state is ActState.RUNNING
        act = begin_step(act, "me")
        assert not act.repeated
        taken.append(act.pending)
        assert act.at // JOBS_PER_LIST == (act.at + act.pending - 1) // JOBS_PER_LIST, (
            "one list has all of them"
        )
        act = end_step(act, StepResult(act.pending - 3, 2, 1), 5)
    assert taken == steps
    assert (act.state, act.ended_at, act.pending, act.holder) == (ActState.DONE, 5, 0, "")
    assert (act.done, act.changed, act.failed) == (
        523 - 3 * len(steps),
        2 * len(steps),
        len(steps),
    )


def test_a_step_that_was_begun_before_is_repeated() -> None:
    first = begin_step(an_act(7), "killed")
    again = begin_step(first, "me")
    assert (first.repeated, again.repeated, again.pending, again.holder) == (False, True, 7, "me")


def stored(*acts: ActRecord) -> list[Stored[ActRecord]]:
    records = [Record(kind="act", key=f"{at:03}", value=b"") for at in range(len(acts))]
    return [Stored(record, act) for record, act in zip(records, acts, strict=True)]


def test_the_number_of_acts_is_bounded() -> None:
    running = replace(an_act(), state=ActState.RUNNING)
    stopped = replace(an_act(), state=ActState.STOPPED, closed=True)
    done = replace(stopped, state=ActState.DONE)
    many = [running] * (ACTS_MAX - 4)
    assert oldest_to_remove(stored(*many, stopped, an_act(), done)) == []
    full = stored(*many, stopped, an_act(), done, done)
    assert [each.key for each in oldest_to_remove(full)] == [full[-2].key]
    counted = stored(*many, running, running, stopped, an_act())
    assert [each.key for each in oldest_to_remove(counted)] == [counted[-1].key]
    with pytest.raises(WrongState, match="already 100 acts"):
        oldest_to_remove(stored(*[running] * ACTS_MAX))


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        (ActPlan(act="move"), "needs the queue"),
        (ActPlan(act="move", queue="'; DROP"), "queue"),
        (ActPlan(act="edit"), "nothing to change"),
        (ActPlan(act="edit", patch=b"{"), "JSON"),
        (ActPlan(act="edit", patch=b" " * 70_000), "too large"),
        (ActPlan(act="edit", priority=101), "priority"),
        (ActPlan(act="edit", labels={"": "x"}), "label"),
        (ActPlan(act="cancel", wanted=JobFilter(queue="a\0")), "NUL"),
    ],
)
def test_an_invalid_plan_is_refused(plan: ActPlan, error: str) -> None:
    with pytest.raises((UsageError, InvalidJob), match=error):
        check_plan(plan)


def test_a_retry_means_dead_letters_unless_states_or_ids_are_given() -> None:
    assert ActPlan(act="retry").states == (State.DEAD,)
    by_id = ActPlan(act="retry", wanted=JobFilter(ids=("a",)))
    assert by_id.states == (State.DONE, State.DEAD, State.CANCELLED)
    done = ActPlan(act="retry", wanted=JobFilter(states=(State.DONE, State.LEASED)))
    assert done.states == (State.DONE,)
    assert State.LEASED not in ActPlan(act="delete").states
    assert State.LEASED in ActPlan(act="delete", force=True).states


def test_a_running_act_without_progress_is_late() -> None:
    running = replace(an_act(), state=ActState.RUNNING)
    assert is_late(running, 61_000, 60_000)
    assert not is_late(running, 60_000, 60_000)
    assert not is_late(an_act(), 61_000, 60_000)
