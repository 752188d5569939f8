"""Strategies for jobs: any reachable mixture of state, token and counters."""

from hypothesis import strategies as st

from holdfast.core.model import Failure, FailureKind, Job, Overrides, Queue, State

NOW = 1_000_000

queues = st.builds(
    Queue,
    name=st.just("q"),
    max_attempts=st.integers(0, 4),
    max_crashes=st.integers(1, 4),
    order=st.sampled_from(("tail", "keep")),
    dead_queue=st.none() | st.just("grave"),
)
failures = st.builds(Failure, kind=st.sampled_from(FailureKind), message=st.text(max_size=5))
overrides = st.builds(
    Overrides,
    max_attempts=st.none() | st.integers(0, 4),
    max_crashes=st.none() | st.integers(1, 4),
)


def jobs(*states: State) -> st.SearchStrategy[Job]:
    return st.builds(
        Job,
        id=st.just("a"),
        task=st.just("t"),
        queue=st.just("q"),
        payload=st.binary(max_size=3),
        state=st.sampled_from(states or tuple(State)),
        version=st.integers(1, 9),
        attempt=st.integers(0, 6),
        crashes=st.integers(0, 4),
        releases=st.integers(0, 30),
        due_at=st.integers(NOW - 10, NOW),
        expires_at=st.none() | st.integers(NOW - 10, NOW + 10),
        token=st.none() | st.integers(1, 9),
        worker=st.none() | st.just("w"),
        cancel_requested=st.booleans(),
        alone=st.booleans(),
        progress=st.none() | st.just(0.5),
        checkpoint=st.none() | st.just(b"c"),
        overrides=overrides,
        key=st.none() | st.just("k"),
    )


leased_jobs = jobs(State.LEASED)
