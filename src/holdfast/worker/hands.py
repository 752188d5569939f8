"""What every runner of calls does with words: takes them, counts what is in hand, and answers.

It knows no socket: words come by `take` and go by `say`, one list for each turn of the loop.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import assert_never

from holdfast.worker.board import Board
from holdfast.worker.telling import Teller
from holdfast.worker.wire import Back, Call, Cancel, ChildSetup, Down, Finish, Recall, Up

_WORD_S = 0.005


class Hands(ABC):
    """Made in the loop it works in. `finished` is called when a `Finish` came and nothing is left
    in hand."""

    def __init__(
        self,
        setup: ChildSetup,
        board: Board,
        say: Callable[[list[Up]], None],
        finished: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._setup = setup
        self._board = board
        self._pass_on = say
        self._finished = finished
        self._finishing = False
        self._flushing = False
        self._held_up = False
        self._words: list[Up] = []
        self._teller = Teller(self._loop, self._say)

    def take(self, words: list[Down]) -> None:
        for word in words:
            match word:
                case Call():
                    self._take_call(word)
                case Cancel(number=number, lost=lost):
                    self._cancel(number, lost=lost)
                case Recall():
                    self._words.append(Back(tuple(self._give_back())))
                case Finish():
                    self._finishing = True
                case _:
                    assert_never(word)
        self._dispatch()
        self._flush()

    @abstractmethod
    def stop(self) -> None:
        """Start nothing more, and end what runs as far as that can be done."""

    @abstractmethod
    def _take_call(self, call: Call) -> None: ...

    @abstractmethod
    def _cancel(self, number: int, *, lost: bool) -> None: ...

    @abstractmethod
    def _give_back(self) -> list[int]:
        """The numbers of the calls that have not started, which are forgotten."""

    @abstractmethod
    def _dispatch(self) -> None:
        """Start what there is room for."""

    @abstractmethod
    def _is_idle(self) -> bool:
        """Nothing is in hand."""

    def _may_begin(self) -> bool:
        """Not when a lease may have lapsed since the supervisor last spoke. It was frozen, or the
        store is out of reach; what waits is looked at again until it knows more."""
        if self._board.may_begin():
            return True
        if not self._held_up:
            self._held_up = True
            self._loop.call_later(_WORD_S, self._look_again)
        return False

    def _look_again(self) -> None:
        self._held_up = False
        self._dispatch()

    def _say(self, word: Up) -> None:
        self._words.append(word)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._words:
            words, self._words = self._words, []
            self._pass_on(words)
        if self._finishing and self._is_idle():
            self._finished()
