"""Hides values in jobs from callers without the scope `operate`: those under keys that match the
setting `dashboard-redact`, in payloads, results, checkpoints, headers, schedules and patches.

A value that cannot be read as JSON is hidden as a whole if it contains the text of a pattern, and
so is a large one. While the patterns cannot be read, everything is hidden.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.config import SETTINGS as KNOWN
from holdfast.core import codec
from holdfast.core.model import Job, NewJob, Record
from holdfast.engines.base import Engine
from holdfast.errors import ConfigError
from holdfast.notation.key_patterns import KeyPattern, read_key_patterns
from holdfast.ops.redrives import REDRIVE_KIND, RedriveRecord
from holdfast.ops.schedules import SCHEDULE_KIND
from holdfast.ops.settings import SETTINGS
from holdfast.ops.ticks import Schedule
from holdfast.server.access.quotas import SharedRead

SETTING = "dashboard-redact"
HIDDEN = "[hidden]"
"""Stands where a value was."""
SIZE_MAX = 128 * 1024
"""A larger value that contains the text of a pattern is hidden as a whole, because reading it would
block the server."""
REDACTED_KINDS = frozenset((SCHEDULE_KIND, REDRIVE_KIND))
"""The kinds of records that hold payloads."""

_NESTED_MAX = 3
"""Texts in texts that are themselves JSON, such as the body of a message."""
_DOTS_MAX = 20
_BREATH = 256 * 1024
"""Bytes after which other requests get their turn."""
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
_HIDDEN_JSON = msgspec.json.encode(HIDDEN)


class RedactionRules:
    """The patterns of one namespace; false if there are none."""

    def __init__(self, patterns: Sequence[KeyPattern] = ()) -> None:
        self._patterns = tuple(patterns)
        self._fragments = tuple({each.fragment for each in patterns})
        self._depth = max((len(each.parts) for each in patterns), default=0)
        self._hides_all = any(each.parts == ("*",) for each in patterns)

    def __bool__(self) -> bool:
        return bool(self._patterns)

    async def jobs(self, jobs: Sequence[Job]) -> tuple[Job, ...]:
        """The jobs as the caller may see them."""
        found: list[Job] = []
        size = 0
        for job in jobs:
            found.append(self.job(job))
            size += len(job.payload) + len(job.result or b"") + len(job.checkpoint or b"")
            if size > _BREATH:
                await asyncio.sleep(0)
                size = 0
        return tuple(found)

    def job(self, job: Job) -> Job:
        """A job as the caller may see it."""
        payload, content_type = self._payload(job.payload, job.content_type)
        return replace(
            job,
            payload=payload,
            content_type=content_type,
            headers=self._texts(job.headers),
            result=None if job.result is None else self.value(job.result),
            checkpoint=None if job.checkpoint is None else self.value(job.checkpoint),
        )

    def record(self, record: Record) -> Record | None:
        """A record of `REDACTED_KINDS` as the caller may see it; None if it cannot be read."""
        shown: Schedule | RedriveRecord
        try:
            if record.kind == SCHEDULE_KIND:
                schedule = msgspec.json.decode(record.value or b"", type=Schedule)
                shown = replace(schedule, job=self._new_job(schedule.job))
            else:
                shown = msgspec.json.decode(record.value or b"", type=RedriveRecord)
                if shown.plan.patch is not None:
                    patch = self.value(shown.plan.patch)
                    shown = replace(shown, plan=replace(shown.plan, patch=patch))
        except _UNREADABLE:
            return None
        return replace(record, value=msgspec.json.encode(shown))

    def value(self, data: bytes) -> bytes:
        """A value in JSON without the values of matching keys."""
        if not data or not self._may_match(data):
            return data
        if self._hides_all or len(data) > SIZE_MAX:
            return _HIDDEN_JSON
        try:
            # Encoded anew even if no key matched: of two equal keys, only one was looked at.
            return msgspec.json.encode(self._shown(msgspec.json.decode(data), (), 0))
        except _UNREADABLE:
            return _HIDDEN_JSON

    def _payload(self, payload: bytes, content_type: str) -> tuple[bytes, str]:
        if content_type == codec.ENVELOPE:
            message = codec.unpack_envelope(payload, content_type)
            attributes = {
                name: codec.Attribute("String", HIDDEN.encode())
                if self._hides((*name.split(".", _DOTS_MAX),))
                else each
                for name, each in message.attributes.items()
            }
            return codec.pack_envelope(self.value(message.body), attributes)
        shown = self.value(payload)
        return shown, codec.JSON if shown == _HIDDEN_JSON else content_type

    def _new_job(self, job: NewJob) -> NewJob:
        payload, content_type = self._payload(job.payload, job.content_type)
        headers = self._texts(job.headers)
        return replace(job, payload=payload, content_type=content_type, headers=headers)

    def _texts(self, texts: dict[str, str]) -> dict[str, str]:
        return {
            name: HIDDEN if self._hides((*name.split(".", _DOTS_MAX),)) else text
            for name, text in texts.items()
        }

    def _shown(self, value: Any, path: tuple[str, ...], nested: int) -> Any:
        match value:
            case dict():
                return {key: self._under(key, each, path, nested) for key, each in value.items()}
            case list():
                return [self._shown(each, path, nested) for each in value]
            case str() if value.lstrip()[:1] in ("{", "[", '"'):
                return self._text(value, path, nested)
            case _:
                return value

    def _under(self, key: str, value: Any, path: tuple[str, ...], nested: int) -> Any:
        for part in key.split(".", _DOTS_MAX):
            path = (*path, part)[-self._depth :]
            if self._hides(path):
                return HIDDEN
        return self._shown(value, path, nested)

    def _text(self, text: str, path: tuple[str, ...], nested: int) -> str:
        """A text that looks like JSON in turn."""
        if not self._may_match(text.encode("utf-8", "replace")):
            return text
        try:
            value = msgspec.json.decode(text) if nested < _NESTED_MAX else HIDDEN
        except _UNREADABLE:
            return HIDDEN
        return msgspec.json.encode(self._shown(value, path, nested + 1)).decode()

    def _hides(self, path: tuple[str, ...]) -> bool:
        return any(each.matches(path) for each in self._patterns)

    def _may_match(self, data: bytes) -> bool:
        """False if no key in these bytes can match. A key may be written with escapes."""
        if b"\\" in data:
            return True
        lower = data.lower()
        return any(fragment in lower for fragment in self._fragments)


NOTHING_HIDDEN = RedactionRules()
EVERYTHING_HIDDEN = RedactionRules(read_key_patterns(SETTING, "*"))


class Redaction:
    """The rules of one namespace, read at most once a second. `is_whole` is False while a part of
    the store is unreachable: then the last known rules apply."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        *,
        is_whole: Callable[[], bool] = lambda: True,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._engine = engine
        self._is_whole = is_whole
        self._environment = environment
        self._cache = SharedRead(self._read)
        self._known = EVERYTHING_HIDDEN

    async def rules(self) -> RedactionRules:
        """The rules, at most a second old."""
        return await self._cache.get()

    async def _read(self) -> RedactionRules:
        text = self._environment.get(KNOWN[SETTING].variable)
        if not text:
            engine = self._engine()
            if not engine.traits.records:
                return NOTHING_HIDDEN
            was_whole = self._is_whole()
            stored = await SETTINGS.read(engine, SETTING)
            if stored is None and not (was_whole and self._is_whole()):
                return self._known
            if stored is not None and stored.value is None:
                return EVERYTHING_HIDDEN
            text = None if stored is None else stored.value
        try:
            patterns = read_key_patterns(SETTING, text) if text else ()
        except ConfigError:
            return EVERYTHING_HIDDEN
        self._known = RedactionRules(patterns)
        return self._known
