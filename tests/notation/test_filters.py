"""States as people write them."""

import re
from typing import Any

import pytest

from holdfast.app.application import Holdfast
from holdfast.core.model import Failure, Job, JobFilter, State, WaitingKind
from holdfast.core.verdict import Retry, Settlement
from holdfast.errors import UsageError
from holdfast.notation.filters import (
    ChosenStates,
    StateWord,
    chosen_states,
    instant,
    is_narrow,
    show_state,
)

WAITING, DONE = State.WAITING, State.DONE
PENDING, SCHEDULED, FAILED = WaitingKind


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (None, (None, None)),
        ([], ((), None)),
        (["waiting"], ((WAITING,), None)),
        (["processing", "leased"], ((State.LEASED,), None)),
        (["completed", "dead"], ((DONE, State.DEAD), None)),
        (["failed"], ((WAITING,), (FAILED,))),
        (["retrying", "failed"], ((WAITING,), (FAILED,))),
        (["pending", "scheduled", "done"], ((WAITING, DONE), (PENDING, SCHEDULED))),
        (["failed", "waiting"], ((WAITING,), None)),
        ([State.DEAD], ((State.DEAD,), None)),
    ],
)
def test_words_for_states(words: list[str] | None, chosen: Any) -> None:
    assert chosen_states(words) == ChosenStates(*chosen)


def test_an_unknown_word_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match='state "finished": expected one of waiting, leased, done'):
        chosen_states(["done", "finished"])


def test_every_state_has_a_word_and_every_word_a_state() -> None:
    assert set(State) <= set(StateWord)
    assert all(chosen_states([word]).states for word in StateWord)


def test_a_state_alone_is_not_narrow() -> None:
    assert not is_narrow(JobFilter(**chosen_states(["failed"])._asdict()))
    assert is_narrow(JobFilter(states=(WAITING,), queue="q"))


async def test_the_python_api_takes_the_words() -> None:
    async with Holdfast("memory:") as app:
        await app.enqueue("t", id="bad")
        [lease] = await app.lease("default")
        await app.settle([Settlement(lease=lease, verdict=Retry(60_000, Failure(message="x")))])
        await app.enqueue("t", id="new")

        async def found(*words: Any) -> list[str]:
            return [job.id for job in (await app.find(JobFilter(states=words))).jobs]

        assert await found("failed") == ["bad"]
        assert await found("pending", "completed") == ["new"]
        assert await found(State.WAITING) == ["new", "bad"]
        wanted = JobFilter(states=(WAITING,), waiting=(FAILED,))
        assert [job.id async for job in app.jobs(wanted)] == ["bad"]
        with pytest.raises(UsageError, match='state "odd": expected one of'):
            await found("odd")
        bad = await app.get("bad")
        assert isinstance(bad, Job)
        assert show_state(bad, 0) == "failed"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("yesterday", "expected an age such as 1h, or a time such as 2026-01-31T08:00:00Z"),
        ("2026-13-01", "expected an age such as 1h, or a time such as 2026-01-31T08:00:00Z"),
        ("2026-01-31", "has no time zone: write 2026-01-31T00:00:00Z, or an offset like +01:00"),
        ("2026-01-31T08:30", "has no time zone: write 2026-01-31T08:30:00Z, or an offset"),
    ],
)
def test_a_bad_instant_names_the_remedy(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        instant("--since", text)
    assert str(caught.value).startswith(f'--since "{text}"')
    assert says in str(caught.value)
    for example in re.findall(r"\d{4}-[\d:TZ-]+", says):
        assert instant("--since", example) is not None, "the remedy works"
