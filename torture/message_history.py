"""Recorded histories of SQS clients, and the checker that looks for broken promises in them. Pure.

A body is sent only once, or repeated with the same deduplication id, so it names one message in all
queues. An instant of the server lies between the beginning and the end of the call that caused it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

Action = Literal["send", "receive", "delete", "hide"]
Result = Literal["ok", "refused", "unknown"]
NEVER = 2**63
SLACK_NS = 5_000_000
"""The store counts in milliseconds, and clocks are corrected in small steps."""


class MessageCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call about one message. `receive` numbers the receive that delivered it, for a receive
    and for the calls with its handle; `position` is the place of the message in that answer.
    `seconds` is the visibility timeout that a receive or a hide asked for."""

    action: Action
    queue: str
    body: str
    began_ns: int
    ended_ns: int
    result: Result = "ok"
    id: str = ""
    group: str = ""
    sequence: int = 0
    receive: str = ""
    position: int = 0
    seconds: int = 0
    error: str = ""


class HistoryEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the server after all clients have stopped: messages left in each queue, and the
    final state of each move task."""

    left: dict[str, int]
    moves: list[str]


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise, by its short name, and the evidence in words."""

    promise: str
    text: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.text}"


def write_call(journal: Path, calls: Sequence[MessageCall]) -> None:
    """Append calls to a journal."""
    with journal.open("ab") as file:
        file.write(b"".join(msgspec.json.encode(each) + b"\n" for each in calls))


def read_calls(directory: Path) -> list[MessageCall]:
    """All calls of the journals in a directory, by their end."""
    decoder = msgspec.json.Decoder(MessageCall)
    calls = [
        decoder.decode(line)
        for path in sorted(directory.glob("*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]
    return sorted(calls, key=lambda call: call.ended_ns)


def check(calls: Iterable[MessageCall], end: HistoryEnd) -> list[Violation]:
    """All violations in a history."""
    messages: dict[str, _Message] = {}
    for call in sorted(calls, key=lambda call: call.ended_ns):
        messages.setdefault(call.body, _Message(call.body)).add(call)
    found = [_left(queue, count) for queue, count in end.left.items() if count]
    found += [
        Violation("move stopped", f"a move task ended as {state}")
        for state in end.moves
        if state != "COMPLETED"
    ]
    for message in messages.values():
        found += _errors(message)
        found += _existence(message)
        found += _resurrections(message)
        found += _overlaps(message)
    groups: dict[tuple[str, str], list[_Message]] = defaultdict(list)
    for message in messages.values():
        if message.group:
            groups[message.group].append(message)
    for members in groups.values():
        found += _disorder(members)
    return found


class _Message:
    """All calls about one message. Receives and sends are sorted by their ends."""

    def __init__(self, body: str) -> None:
        self.body = body
        self.sends: list[MessageCall] = []
        self.receives: list[MessageCall] = []
        self.deletes: list[MessageCall] = []
        self.hides: list[MessageCall] = []
        self.refused: list[MessageCall] = []

    def add(self, call: MessageCall) -> None:
        if call.result == "refused":
            self.refused.append(call)
            return
        kinds = {"send": self.sends, "receive": self.receives, "delete": self.deletes}
        kinds.get(call.action, self.hides).append(call)

    @property
    def group(self) -> tuple[str, str] | None:
        call = next((each for each in (*self.sends, *self.receives) if each.group), None)
        return None if call is None else (call.queue, call.group)

    @property
    def sequences(self) -> set[int]:
        return {each.sequence for each in (*self.sends, *self.receives) if each.sequence}

    @property
    def deleted_from_ns(self) -> int:
        """The first instant at which the message may have been deleted."""
        return min((each.began_ns for each in self.deletes), default=NEVER)

    def held_until_ns(self, receive: MessageCall) -> int:
        """The first instant at which the message may be visible again after a receive."""
        until = receive.began_ns + receive.seconds * 10**9 - SLACK_NS
        for hide in self.hides:
            if hide.receive == receive.receive:
                after = hide.began_ns + hide.seconds * 10**9 - SLACK_NS
                is_certain = hide.result == "ok" and hide.ended_ns < until
                until = after if is_certain else min(until, after)
        return until


def _left(queue: str, count: int) -> Violation:
    return Violation("not drained", f"{count} messages are left in {queue}")


def _errors(message: _Message) -> Iterator[Violation]:
    """Every request of the clients is valid; only a handle may have expired."""
    receives = {each.receive: each for each in message.receives}
    for call in message.refused:
        receive = receives.get(call.receive)
        if receive is None or call.ended_ns < message.held_until_ns(receive):
            yield Violation("wrong error", f"{call.action} of {message.body}: {call.error}")


def _existence(message: _Message) -> Iterator[Violation]:
    """Sent messages are received; received ones were sent, once, and ended by a delete."""
    acknowledged = any(each.result == "ok" for each in message.sends)
    if acknowledged and not message.receives:
        yield Violation("lost", f"{message.body} was sent and never received")
    if message.receives and not message.sends:
        yield Violation("invented", f"{message.body} was received and never sent")
    ids: dict[str, set[str]] = defaultdict(set)
    for each in (*message.sends, *message.receives):
        if each.id:
            ids[each.queue].add(each.id)
    for queue, known in ids.items():
        if len(known) > 1:
            yield Violation("doubled", f"{message.body} has {len(known)} ids in {queue}")
    if message.receives and not any(_may_delete(message, each) for each in message.deletes):
        yield Violation("lost", f"{message.body} is gone, and no client could have deleted it")


def _may_delete(message: _Message, delete: MessageCall) -> bool:
    """False if another client certainly held the message during the whole call: a handle from
    before must then have no effect."""
    return not any(
        each.receive != delete.receive
        and each.ended_ns < delete.began_ns
        and delete.ended_ns < message.held_until_ns(each)
        for each in message.receives
    )


def _resurrections(message: _Message) -> Iterator[Violation]:
    """No receive begins after an acknowledged delete by the client that held the message."""
    receives = {each.receive: each for each in message.receives}
    gone_ns = min(
        (
            delete.ended_ns
            for delete in message.deletes
            if delete.result == "ok"
            and delete.receive in receives
            and delete.ended_ns < message.held_until_ns(receives[delete.receive])
        ),
        default=NEVER,
    )
    for each in message.receives:
        if each.began_ns > gone_ns:
            late_ms = (each.ended_ns - gone_ns) // 10**6
            text = f"{message.body} was received from {each.queue} {late_ms} ms after its delete"
            yield Violation("resurrected", text)


def _overlaps(message: _Message) -> Iterator[Violation]:
    """Of two receives, one began its hold after the other's hold may have ended."""
    receives = message.receives
    for number, later in enumerate(receives):
        for earlier in receives[:number]:
            early_ns = message.held_until_ns(earlier) - later.ended_ns
            if early_ns > 0 and earlier.ended_ns < message.held_until_ns(later):
                early_ms = early_ns // 10**6
                text = f"{message.body} was received by {later.receive} at least {early_ms} ms"
                yield Violation("held twice", f"{text} before {earlier.receive} lost it")


def _disorder(members: Sequence[_Message]) -> Iterator[Violation]:
    """The messages of a group are received in the order in which they were sent, and each only
    after all before it are deleted, or in one answer with them."""
    for message in members:
        if len(message.sequences) > 1:
            yield Violation("order", f"{message.body} has several sequence numbers")
    known = [message for message in members if message.sequences]
    known.sort(key=lambda message: min(message.sequences))
    yield from _send_order(known)
    answers: dict[str, dict[str, int]] = defaultdict(dict)
    for message in known:
        for each in message.receives:
            answers[each.receive][message.body] = each.position
    for number, message in enumerate(known):
        for each in message.receives:
            answer = answers[each.receive]
            for earlier in reversed(known[:number]):
                is_before = answer.get(earlier.body, each.position) < each.position
                if earlier.deleted_from_ns >= each.ended_ns and not is_before:
                    text = f"{message.body} was received before {earlier.body} was deleted"
                    yield Violation("order", text)
                    break


def _send_order(known: Sequence[_Message]) -> Iterator[Violation]:
    """A message that was sent after the acknowledgement of another has a higher number."""
    latest: _Message | None = None
    for message in known:
        if not message.sends:
            continue
        if latest is not None and message.sends[-1].ended_ns < latest.sends[0].began_ns:
            text = f"{message.body} was sent before {latest.body} and has a higher number"
            yield Violation("order", text)
        if latest is None or message.sends[0].began_ns > latest.sends[0].began_ns:
            latest = message
