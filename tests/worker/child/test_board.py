"""The running calls of a child can be read from outside, also after its death."""

import os
import time
from collections.abc import Iterator

import pytest

from holdfast.process import boot_ns
from holdfast.worker.wire import Board


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.make(3)
    yield board
    board.close()


def test_an_empty_board(board: Board) -> None:
    assert (board.started, board.running()) == (0, {})


def test_calls_come_and_go(board: Board) -> None:
    before = time.monotonic_ns()
    board.start(0, 5)
    board.start(2, 6)
    running = board.running()
    assert list(running) == [5, 6]
    assert before <= running[5] <= running[6] <= time.monotonic_ns()
    board.end(0)
    assert (list(board.running()), board.started) == ([6], 6)
    board.start(0, 7)
    board.end(2)
    assert (list(board.running()), board.started) == ([7], 7)


def test_the_highest_started_number_only_grows(board: Board) -> None:
    board.start(0, 9)
    board.start(1, 4)
    assert board.started == 9


def test_calls_may_begin_until_the_instant_the_supervisor_wrote(board: Board) -> None:
    assert board.may_begin()
    theirs = Board(os.dup(board.descriptor), board.slots)
    board.until_ns = boot_ns() + 3_600_000_000_000
    assert theirs.may_begin()
    board.until_ns = boot_ns()
    assert not theirs.may_begin()
    assert (board.started, board.running()) == (0, {})
    theirs.close()


def test_it_outlives_the_process_that_wrote_it(board: Board) -> None:
    pid = os.fork()
    if not pid:
        theirs = Board(os.dup(board.descriptor), board.slots)
        theirs.start(1, 42)
        os._exit(0)
    os.waitpid(pid, 0)
    assert (list(board.running()), board.started) == ([42], 42)
