"""Frames arrive in any pieces, and every message survives the way."""

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
    CallsEnded,
    CancelCall,
    ChildBroken,
    ChildCalls,
    ChildReady,
    ChildSetup,
    Finish,
    FrameReader,
    GivenBack,
    NoteUpdate,
    Raised,
    Recall,
    Returned,
    TaskInfo,
    ToChild,
    decode_from_child,
    decode_to_child,
    encode_frame,
)

FAILURE = Failure(kind=FailureKind.CRASH, type="SIGKILL", message="\x00\ud7ff", signal=9)
GIVEN = (
    ("a", "mail", b"\x00\xff", "application/json", 2, 7, 1_800_000_000_000, True, b"1", "k", "t"),
    ("b", "mail", b"", "text/plain", 1, 2**62, 0),
)
UP: list[Any] = [
    ChildReady((TaskInfo("work", 10, True, True), TaskInfo("other"))),
    ChildBroken(FAILURE),
    NoteUpdate(3, 1, 0.5, b"[1]", b"words"),
    NoteUpdate(3),
    GivenBack((1, 2, 3)),
    GivenBack(()),
    CallsEnded(
        [4, 5],
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


def test_instructions_survive_the_way() -> None:
    calls = msgspec.convert(
        [["calls", 1, "work", [[list(g) for g in GIVEN]], 500]], list[ChildCalls]
    )
    words: list[ToChild] = [*calls, CancelCall(1), CancelCall(2, True), Recall(), Finish()]
    [body] = FrameReader().feed(encode_frame(words))
    assert decode_to_child(body) == words


def test_answers_survive_the_way() -> None:
    [body] = FrameReader().feed(encode_frame(UP))
    assert decode_from_child(body) == UP


@pytest.mark.parametrize("size", [1, 2, 3, 5, 4096])
def test_frames_in_pieces(size: int) -> None:
    batches = [[GivenBack((number,))] * (number % 5) for number in range(60)]
    data = b"".join(encode_frame(batch) for batch in batches)
    frames = FrameReader()
    heard = [
        decode_from_child(body)
        for at in range(0, len(data), size)
        for body in frames.feed(data[at : at + size])
    ]
    assert heard == batches


def test_frames_in_random_pieces() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    data = b"".join(encode_frame([NoteUpdate(n, output=draw.randbytes(n * 7))]) for n in range(80))
    frames, heard, at = FrameReader(), 0, 0
    while at < len(data):
        size = draw.choice((1, 3, 50, 5000))
        heard += sum(1 for _ in frames.feed(data[at : at + size]))
        at += size
    assert heard == 80


def test_a_setup_goes_through_the_environment() -> None:
    setup = ChildSetup(worker="w", worker_id="1", slots=3, target="a:app", environment=("PATH",))
    assert msgspec.json.decode(msgspec.json.encode(setup), type=ChildSetup) == setup


def test_a_message_of_the_wrong_side_is_refused() -> None:
    [body] = FrameReader().feed(encode_frame([wire.Recall()]))
    with pytest.raises(msgspec.ValidationError):
        decode_from_child(body)
