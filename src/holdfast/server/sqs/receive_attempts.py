"""ReceiveRequestAttemptId: a client repeats a receive whose answer it lost.

The answers to requests with such an id are kept for five minutes, as receipts only. A restart
forgets them; a repeat is then a new receive, and the messages of the first one are visible again
when their timeout ends.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.server.sqs.receipts import MessageReceipt

_RETENTION_S: Final = 300.0
_ATTEMPTS_MAX: Final = 10_000

AttemptKey = tuple[str, str]
"""A queue and the id of the attempt."""


@dataclass(slots=True)
class ReceiveAttempt:
    """The answer of one receive. `is_changed` is True once a client has deleted one of its
    messages, or has changed the visibility of one."""

    receipts: tuple[MessageReceipt, ...]
    until: float
    is_changed: bool = False


class ReceiveAttempts:
    """The latest receives with an attempt id, of one namespace."""

    def __init__(self) -> None:
        self._attempts: OrderedDict[AttemptKey, ReceiveAttempt] = OrderedDict()
        self._by_token: dict[tuple[str, int], ReceiveAttempt] = {}

    def get(self, key: AttemptKey) -> ReceiveAttempt | None:
        """The receive with this id, unless it is too old."""
        self._forget_old()
        return self._attempts.get(key)

    def add(self, key: AttemptKey, receipts: Sequence[MessageReceipt]) -> None:
        """Keep the answer of a receive."""
        self.remove(key)
        until = asyncio.get_running_loop().time() + _RETENTION_S
        attempt = ReceiveAttempt(tuple(receipts), until)
        self._attempts[key] = attempt
        self._by_token |= {(each.id, each.token): attempt for each in receipts}
        self._forget_old()

    def remove(self, key: AttemptKey) -> None:
        """Forget a receive."""
        attempt = self._attempts.pop(key, None)
        for each in () if attempt is None else attempt.receipts:
            self._by_token.pop((each.id, each.token), None)

    def note_change(self, receipt: MessageReceipt) -> None:
        """A client has deleted this message, or changed its visibility."""
        attempt = self._by_token.get((receipt.id, receipt.token))
        if attempt is not None:
            attempt.is_changed = True

    def _forget_old(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._attempts:
            key, oldest = next(iter(self._attempts.items()))
            if oldest.until > now and len(self._attempts) <= _ATTEMPTS_MAX:
                return
            self.remove(key)
