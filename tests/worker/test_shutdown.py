"""The end of a worker: by signals, by orders through the engine, and without its launcher."""

import signal
import subprocess

import pytest

from holdfast.core.model import EventKind, State
from holdfast.errors import UsageError
from holdfast.notation.durations import Duration
from tests.worker.live_workers import Place, until


async def ended(process: subprocess.Popen[bytes]) -> int:
    await until(lambda: process.poll() is not None, "the worker to end")
    assert process.returncode is not None
    return process.returncode


async def draining(place: Place) -> None:
    async def look() -> bool:
        return any(view.record.stopping for view in await place.app.workers.all())

    await until(look, "the worker to say that it stops")


async def assert_released(place: Place, *ids: str) -> None:
    for id_ in ids:
        job = await place.job(id_)
        assert (job.state, job.attempt, job.crashes) == (State.WAITING, 0, 0)
        assert job.events[-1].kind is EventKind.RELEASED


async def test_the_first_signal_drains(place: Place) -> None:
    process = await place.worker()
    await place.enqueue("hold", "a")
    await place.started("a")
    process.terminate()
    await draining(place)
    await place.enqueue("note", "b")
    place.go()
    assert await ended(process) == 0
    assert (await place.job("a")).state is State.DONE
    assert (await place.job("b")).state is State.WAITING
    assert await place.app.workers.all() == []


async def test_after_the_grace_period_the_rest_is_released(place: Place) -> None:
    process = await place.worker(grace_ms=100)
    await place.enqueue("hold", *"ab")
    await place.enqueue("hold_async", "c")
    await place.started(*"abc")
    process.terminate()
    assert await ended(process) == 0
    await assert_released(place, *"abc")


async def test_the_second_signal_releases_at_once(place: Place) -> None:
    process = await place.worker(concurrency=1)
    await place.enqueue("gather", "a", payload=str(place.folder))
    await place.started("a")
    await place.enqueue("gather", "b", payload=str(place.folder))
    await place.in_state("b", State.LEASED)
    process.terminate()
    await draining(place)
    # Calls that had not started were given back already.
    await place.in_state("b", State.WAITING)
    process.send_signal(signal.SIGINT)
    assert await ended(process) == 0
    await assert_released(place, "a", "b")


async def test_the_launcher_passes_signals_on(place: Place) -> None:
    options = [place.options(name=f"w-{number}") for number in (1, 2)]
    launcher = await place.launcher(*options)
    await place.enqueue("hold", *"ab")
    await place.started(*"ab")
    launcher.send_signal(signal.SIGINT)
    await draining(place)
    launcher.send_signal(signal.SIGINT)
    assert await ended(launcher) == 0
    await place.nobody_left()
    await assert_released(place, *"ab")


async def test_a_stop_through_the_engine_lets_running_jobs_finish(place: Place) -> None:
    process = await place.worker(name="w")
    await place.enqueue("hold", "a")
    await place.started("a")
    await place.app.workers.stop("w", by="me")
    await draining(place)
    place.go()
    assert await ended(process) == 0
    assert (await place.job("a")).state is State.DONE


@pytest.mark.parametrize(("own_ms", "grace"), [(100, None), (600_000, "100ms"), (600_000, 0)])
async def test_a_stop_through_the_engine_ends_after_its_grace(
    place: Place, own_ms: int, grace: Duration | None
) -> None:
    process = await place.worker(name="w", grace_ms=own_ms)
    await place.enqueue("hold", "a")
    await place.started("a")
    await place.app.workers.stop("w", grace=grace)
    assert await ended(process) == 0
    await assert_released(place, "a")


async def test_the_latest_order_decides(place: Place) -> None:
    process = await place.worker(name="w", grace_ms=600_000)
    await place.enqueue("hold", "a")
    await place.started("a")
    await place.app.workers.stop("w")
    await draining(place)
    await place.app.workers.stop("w", grace=0)
    assert await ended(process) == 0
    await assert_released(place, "a")


async def test_a_drain_through_the_engine_waits_for_ever(place: Place) -> None:
    """Longer than the grace period, until a signal stops it."""
    process = await place.worker(name="w", grace_ms=100)
    await place.enqueue("hold", "a")
    await place.started("a")
    await place.app.workers.drain("w")
    await draining(place)
    assert (await place.job("a")).state is State.LEASED
    process.terminate()
    assert await ended(process) == 0
    await assert_released(place, "a")


async def test_a_stopped_worker_is_not_started_again(place: Place) -> None:
    launcher = await place.launcher(place.options(name="w"))
    await place.app.workers.stop("w", grace=0)
    assert await ended(launcher) == 0
    await place.worker(name="w")
    await place.enqueue("note", "a")
    (job,) = await place.finished("a")
    assert job.state is State.DONE


async def test_cordon_and_uncordon_over_a_restart(place: Place) -> None:
    launcher = await place.launcher(place.options(name="w"))
    await place.enqueue("hold", "a")
    await place.started("a")
    await place.app.workers.cordon("w", by="me")

    async def cordoned() -> bool:
        # As the worker itself says, not only as it was told.
        records = await place.app.engine.load("worker", limit=10)
        return any(record.value and b'"cordoned":true' in record.value for record in records)

    await until(cordoned, "the worker to know")
    await place.enqueue("note", "b")
    place.go()
    await place.finished("a")
    (view,) = await place.workers()
    assert (view.record.cordoned, view.health) == (True, "healthy")
    assert (await place.job("b")).state is State.WAITING
    launcher.terminate()
    await ended(launcher)
    await place.worker(name="w")
    await until(cordoned, "the next start to know")
    assert (await place.job("b")).state is State.WAITING
    await place.app.workers.uncordon("w")
    (job,) = await place.finished("b")
    assert job.state is State.DONE


async def test_an_order_to_an_unknown_worker(place: Place) -> None:
    with pytest.raises(UsageError, match=r'unknown worker "x": .*; there are: none;'):
        await place.app.workers.drain("x")
