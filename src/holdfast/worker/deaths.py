"""What a child's death means for each call it had: whose fault it was, and who starts again."""

from __future__ import annotations

import signal
from time import monotonic_ns

from holdfast.core.model import Failure, FailureKind
from holdfast.worker.calls import GENTLE_MS, Placed, Seat
from holdfast.worker.ears import Ears
from holdfast.worker.wire import AskedRelease, Raised

_RELEASES_BESIDE = 5


_LOST_S = 0.5
"""A lost call may end by itself for so long; then its child is killed."""


def why_end(seat: Seat, now: float) -> str:
    """Why this child must be killed, as its innocent jobs are told; "" when it need not be."""
    if not seat.link.killable:
        return ""
    guilty = find_guilty(seat)
    if guilty:
        seat.guilty.update(guilty)
        return "a job beside it ran past its timeout"
    lost = (placed.lost_at for placed in seat.calls.values() if placed.lost_at is not None)
    if any(now - lost_at > _LOST_S for lost_at in lost):
        return "a job beside it had lost its lease and would not end"
    return ""


def find_guilty(seat: Seat) -> dict[int, Failure]:
    """Calls that run past their timeout, beyond what the child could have ended by itself."""
    if not any(placed.timeout_ms is not None for placed in seat.calls.values()):
        return {}
    guilty: dict[int, Failure] = {}
    now = monotonic_ns()
    for number, started in seat.link.board.running().items():
        placed = seat.calls.get(number)
        if placed is None or placed.timeout_ms is None:
            continue
        allowed_ms = placed.timeout_ms
        if seat.link.setup.target is None:
            allowed_ms += seat.link.setup.grace_ms + 5 * GENTLE_MS
        elif placed.gentle:
            allowed_ms += GENTLE_MS
        if now - started > allowed_ms * 1_000_000:
            guilty[number] = Failure(
                kind=FailureKind.TIMEOUT,
                type="AttemptTimeout",
                message=f"still running after its timeout of {placed.timeout_ms / 1000:g} s,"
                " and killed",
            )
    return guilty


def after_death(seat: Seat, ears: Ears) -> list[Placed]:
    """Tell what became of each call; those that had not started are given back."""
    running = seat.link.board.running()
    started = seat.link.board.started
    unstarted: list[Placed] = []
    suspects: list[Placed] = []
    for number, placed in seat.calls.items():
        if number in seat.guilty:
            for held in placed.held:
                ears.ended(held, Raised(seat.guilty[number], output=None))
        elif number in running:
            suspects.append(placed)
        elif number > started:
            unstarted.append(placed)
        else:
            _release(placed, ears, "its process died before it could tell how the job ended")
    _judge(seat, suspects, ears)
    return unstarted


def _judge(seat: Seat, suspects: list[Placed], ears: Ears) -> None:
    if seat.ending:
        for placed in suspects:
            _release(placed, ears, seat.ending, beside_timeout=bool(seat.guilty))
        return
    failure = _failure(seat)
    if seat.link.setup.target is None:
        # Commands are processes of their own: none of them can have ended the one beside them.
        for placed in suspects:
            _release(placed, ears, failure.message)
        return
    jobs = [held for placed in suspects for held in placed.held]
    for held in jobs:
        ears.crashed(held, failure, alone=len(jobs) == 1)


def _release(placed: Placed, ears: Ears, why: str, *, beside_timeout: bool = False) -> None:
    """Whoever takes long and stands beside those that hang would be begun again and again, until
    its releases are used up and it is charged: at last it runs alone."""
    for held in placed.held:
        alone = beside_timeout and held.job.releases >= _RELEASES_BESIDE
        ears.ended(held, AskedRelease(why, alone=alone))


def _failure(seat: Seat) -> Failure:
    status = seat.link.status or 0
    last_words = seat.link.tail.decode(errors="replace")
    if status < 0:
        name = _signal_name(-status)
        text = f"its process was killed by {name}"
        return Failure(
            kind=FailureKind.CRASH, type=name, message=text, trace=last_words, signal=-status
        )
    return Failure(
        kind=FailureKind.CRASH,
        type="Exit",
        message=f"its process ended with exit code {status}",
        trace=last_words,
        exit_code=status,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
