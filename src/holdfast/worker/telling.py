"""What running jobs have to say is passed on soon, and of each no more than twice a second."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from holdfast.worker.wire import Told, Up

_FIRST_S = 0.1
"""Most jobs are over by then, and their endings say it all."""
_PAUSE_S = 0.5


class Speaker(Protocol):
    def told(self) -> Told | None: ...


class Teller:
    """`hear` may be called from any thread, once for each thing new; the rest is the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, say: Callable[[Up], None]) -> None:
        self._loop = loop
        self._say = say
        self._speakers: deque[Speaker] = deque()
        self._waking = False

    def hear(self, speaker: Speaker) -> None:
        self._speakers.append(speaker)
        if not self._waking:
            self._waking = True
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._loop.call_later(_FIRST_S, self._pass_on)

    def _pass_on(self) -> None:
        speakers = self._speakers
        if not speakers:
            self._waking = False
            # Whoever spoke just before that was set did not wake the loop.
            if not speakers:
                return
            self._waking = True
        while speakers:
            if (told := speakers.popleft().told()) is not None:
                self._say(told)
        self._loop.call_later(_PAUSE_S, self._pass_on)
