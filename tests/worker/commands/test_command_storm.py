"""Many commands at once, cancelled and timed out at random: each ends once and leaves nothing.
The seed is in the test's name, so that pytest's own line runs it again."""

import random
from collections import Counter

import pytest

from holdfast.core.model import FailureKind
from holdfast.worker import processes
from holdfast.worker.wire import AskedCancel, CallsEnded, CancelCall, Raised, Returned
from tests.worker.child_driver import started

DETACHED = "setsid -f sleep 600; setsid -f sh -c 'setsid -f sleep 600; sleep 600'; "
SCRIPTS = {
    "quick": "exit 0",
    "prints": "echo hello; echo hello >&2",
    "fails": "exit 3",
    "dies": "kill -9 $$",
    "background": "sleep 600 & exit 0",
    "detaches": DETACHED + "exit 0",
    "detaches and hangs": DETACHED + "sleep 600",
    "hangs": "sleep 600",
    "stubborn": "trap '' TERM; while :; do sleep 0.05; done",
    "floods": "yes | head -c 2000000",
}


@pytest.mark.parametrize("seed", range(3))
def test_every_command_ends_once_and_leaves_nothing(seed: int) -> None:
    rng = random.Random(seed)
    with started(slots=8, grace_ms=100, output_max=1_000) as child:
        kinds: dict[int, str] = {}
        cancelled: set[int] = set()
        for _ in range(80):
            kind = rng.choice(list(SCRIPTS))
            endless = kind in ("detaches and hangs", "hangs", "stubborn")
            timeout_ms = rng.randint(1, 400) if endless or rng.random() < 0.2 else None
            number = child.command(["sh", "-c", SCRIPTS[kind]], timeout_ms)
            kinds[number] = kind
            if rng.random() < 0.2:
                target = rng.choice(list(kinds))
                cancelled.add(target)
                child.write(CancelCall(target, lost=rng.random() < 0.3))
        for number, kind in kinds.items():
            ending = child.ending(number)
            timed_out = isinstance(ending, Raised) and ending.failure.kind is FailureKind.TIMEOUT
            if timed_out or (isinstance(ending, AskedCancel) and number in cancelled):
                continue
            if kind in ("fails", "dies"):
                assert isinstance(ending, Raised), (kind, ending)
            else:
                assert isinstance(ending, Returned), (kind, ending)
        assert not child.survivors()
        assert processes.children(child.process.pid) == []
        assert child.board.running() == {}
        ended = Counter(
            number
            for word in child.answers
            if isinstance(word, CallsEnded)
            for number in word.numbers
        )
        assert set(ended.values()) == {1}
