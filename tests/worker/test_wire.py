"""Frames come in whatever pieces the socket gives, and every word survives the way."""

import random
from typing import Any

import msgspec
import pytest

from holdfast.core.model import Failure, FailureKind, NewJob
from holdfast.worker import wire
from holdfast.worker.wire import (
    AskedBury,
    AskedCancel,
    AskedRelease,
    AskedRetry,
    Back,
    Broken,
    Call,
    Cancel,
    ChildSetup,
    Down,
    Ended,
    Finish,
    Frames,
    Raised,
    Ready,
    Recall,
    Returned,
    TaskInfo,
    Told,
    frame,
    words_down,
    words_up,
)

FAILURE = Failure(kind=FailureKind.CRASH, type="SIGKILL", message="\x00\ud7ff", signal=9)
GIVEN = (
    ("a", "mail", b"\x00\xff", "application/json", 2, 7, 1_800_000_000_000, True, b"1", "k", "t"),
    ("b", "mail", b"", "text/plain", 1, 2**62, 0),
)
UP: list[Any] = [
    Ready((TaskInfo("work", 10, True, True), TaskInfo("other"))),
    Broken(FAILURE),
    Told(3, 1, 0.5, b"[1]", b"words"),
    Told(3),
    Back((1, 2, 3)),
    Back(()),
    Ended(
        4,
        (
            Returned(b"1", (NewJob(id="n", task="next", payload=b"\xff"),), b"out"),
            Returned(),
            Raised(FAILURE, True, b"out"),
            AskedRetry(FAILURE, 5),
            AskedBury(FAILURE),
            AskedRelease("later", 7, b"out"),
            AskedCancel("enough"),
        ),
    ),
]


def test_what_a_supervisor_says() -> None:
    calls = msgspec.convert([["call", 1, "work", [list(g) for g in GIVEN], 500]], list[Call])
    words: list[Down] = [*calls, Cancel(1), Cancel(2, True), Recall(), Finish()]
    [body] = Frames().feed(frame(words))
    assert words_down(body) == words


def test_what_a_child_says() -> None:
    [body] = Frames().feed(frame(UP))
    assert words_up(body) == UP


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 4096])
def test_frames_in_pieces(piece: int) -> None:
    batches = [[Back((number,))] * (number % 5) for number in range(60)]
    data = b"".join(frame(batch) for batch in batches)
    frames = Frames()
    heard = [
        words_up(body)
        for at in range(0, len(data), piece)
        for body in frames.feed(data[at : at + piece])
    ]
    assert heard == batches


def test_frames_in_random_pieces() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    data = b"".join(frame([Told(n, output=draw.randbytes(n * 7))]) for n in range(80))
    frames, heard, at = Frames(), 0, 0
    while at < len(data):
        size = draw.choice((1, 3, 50, 5000))
        heard += sum(1 for _ in frames.feed(data[at : at + size]))
        at += size
    assert heard == 80


def test_a_setup_goes_through_the_environment() -> None:
    setup = ChildSetup(worker="w", worker_id="1", slots=3, target="a:app", environment=("PATH",))
    assert msgspec.json.decode(msgspec.json.encode(setup), type=ChildSetup) == setup


def test_a_word_of_the_wrong_side_is_refused() -> None:
    [body] = Frames().feed(frame([wire.Recall()]))
    with pytest.raises(msgspec.ValidationError):
        words_up(body)
