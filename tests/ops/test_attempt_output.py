"""The output of each attempt of a job, while it waits, runs and after it has ended."""

import pytest

from holdfast import Context, Holdfast, Job, JobHandle, Lease, Note
from holdfast.conformance.contract.cases import reap
from holdfast.core import bounds
from holdfast.errors import UsageError
from holdfast.ops.jobs.views import output_view
from holdfast.testing import inline, manual


@pytest.fixture
def app() -> Holdfast:
    app = Holdfast("memory:")

    @app.task(name="speak", max_attempts=3, backoff="constant(1m, jitter=0)")
    def speak(texts: list[str], ctx: Context) -> None:
        text = texts[ctx.attempt - 1]
        if text.strip("-"):
            ctx.log(text.strip("-"))
        if not text.endswith("-"):
            raise ValueError(text)

    return app


def outputs(handle: JobHandle[object]) -> list[str]:
    job = handle.job()
    assert job is not None
    return [output_view(job, number).output for number in range(1, job.attempt + 1)]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["one", "two-"], ["one\n", "two\n"]),
        (["same", "same-"], ["same\n", "same\n"]),
        (["", "two", "three"], ["", "two\n", "three\n"]),
        (["one", "", ""], ["one\n", "", ""]),
    ],
)
def test_each_attempt_has_its_own_output(
    app: Holdfast, texts: list[str], expected: list[str]
) -> None:
    with inline(app):
        assert outputs(app.tasks["speak"].enqueue(texts)) == expected


def test_while_the_next_attempt_has_written_nothing_it_has_no_output(app: Holdfast) -> None:
    with manual(app) as jobs:
        handle = app.tasks["speak"].enqueue(["one", "two"])
        jobs.drain()
        assert outputs(handle) == ["one\n"]
        jobs.advance("1m")
        lease = leased(app)
        assert outputs(handle) == ["one\n", ""]
        app.run(app.renew(lease, note=Note(output=b"so far")))
        assert outputs(handle) == ["one\n", "so far"]
        jobs.advance("10m")
        app.run(reap(app.engine))
        assert outputs(handle) == ["one\n", "so far"]


def leased(app: Holdfast) -> Lease:
    return app.run(app.lease())[0]


def test_a_long_output_of_a_failed_attempt_is_bounded(app: Holdfast) -> None:
    with inline(app):
        handle = app.tasks["speak"].enqueue(["x" * 100_000, "-"])
        first, second = outputs(handle)
    assert len(first.encode()) <= bounds.ERROR_TEXT_MAX + 100
    assert "characters left out" in first
    assert second == ""


def test_after_a_redrive_attempts_count_from_one_again(app: Holdfast) -> None:
    with manual(app) as jobs:
        handle = app.tasks["speak"].enqueue(["old"] * 3)
        for _ in range(3):
            jobs.drain()
            jobs.advance("1m")
        app.run(app.redrive(handle.id))
        leased(app)
        assert outputs(handle) == [""]


def test_an_attempt_that_was_not_made_is_refused(app: Holdfast) -> None:
    job = Job(id="j1", task="speak", queue="default", attempt=2)
    with pytest.raises(UsageError, match="job j1 has had 2 attempts, and no attempt 3"):
        output_view(job, 3)
