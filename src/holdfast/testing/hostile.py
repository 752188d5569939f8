"""Bad input, as fixed lists and as Hypothesis strategies, for every edge that takes input.

What is listed as storable must come back byte for byte; what is not must be refused with a reason.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from holdfast.core import limits
from holdfast.core.model import NewJob

PAYLOADS: tuple[bytes, ...] = (
    b"",
    b"\x00",
    b"before\x00after",
    b"\xff\xfe\x80 not UTF-8 \xc3\x28",
    b"\xed\xa0\x80 a surrogate in UTF-8",
    b'"\\ud800"',
    b"NaN",
    b'{"n":NaN,"i":Infinity,"m":-Infinity}',
    b'{"n":1e400}',
    b'{"a":1,"a":2}',
    b"[" * 10_000 + b"]" * 10_000,
    b'{"n":123456789012345678901234567890}',
    b"'; DROP TABLE job; --",
    b"\\x00 \\001 %s %(a)s {0} $1 ?1 :a",
    b"\xef\xbb\xbf{}",
    b"\r\n\r\n\x1b[31m",
    "\u202ertl \U0001f4a3 \u00e9 e\u0301".encode(),
    bytes(range(256)),
    b"x" * limits.PAYLOAD_MAX,
)
"""Every payload is opaque bytes: each of these is stored exactly."""

PAYLOAD_TOO_LARGE = b"x" * (limits.PAYLOAD_MAX + 1)

STORABLE_TEXTS: tuple[str, ...] = (
    "'; DROP TABLE job; --",
    '"quoted" `ticks` [brackets]',
    "100%_wild\\card*?",
    "../../etc/passwd",
    "a/b c\td\ne\r\x1b[31m\x7f",
    "\u202ertl\u200b",
    "\u00e9 e\u0301 \u017f \u212a \ufb01",
    "\U0001f4a3\uffff\U0010ffff",
    "\x01\x02\u0085\u2028",
    " spaces ",
    "$1 ?1 :a %s {0}",
    "null",
    "NaN",
    "é" * (limits.NAME_BYTES_MAX // 2),
)
"""For key, tenant, group, worker, names of labels: kept exactly and found again."""

UNSTORABLE_TEXTS: tuple[str, ...] = (
    "",
    "\x00",
    "before\x00after",
    "\ud800",
    "lone \udfff low",
    "x" * (limits.NAME_BYTES_MAX + 1),
    "é" * (limits.NAME_BYTES_MAX // 2 + 1),
)

QUEUE_NAMES: tuple[str, ...] = (
    "a",
    "Mail",
    "mail",
    "..",
    "-",
    "0",
    "select",
    "x" * 64,
    "y" * 80,
)
"""Odd but right; each names a queue of its own, in every case of its letters."""

BAD_QUEUE_NAMES: tuple[str, ...] = (
    "",
    " ",
    "a b",
    "it's",
    'say "so"',
    "a/b",
    "../up",
    "'; DROP TABLE job; --",
    "\u202egnirts",
    "é",
    "a\x00b",
    "\ud800",
    "line\n",
    "z" * 81,
    "%",
    "*",
)

ERROR_TEXTS: tuple[str, ...] = (
    *(text for text in UNSTORABLE_TEXTS if text),
    *STORABLE_TEXTS,
    "\x00" * 100,
    "trace\n" * 10_000,
)
"""What an exception may say. It is cleaned and cut, never refused."""

HUGE_NUMBERS: tuple[int, ...] = (2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30)

_GOOD: dict[str, Any] = {"id": "bad", "task": "t"}

BAD_JOBS: tuple[tuple[str, NewJob], ...] = (
    *(("invalid_job", NewJob(**_GOOD | {"id": id_})) for id_ in ("", "a b", "é", "\x00", "\ud800")),
    ("invalid_job", NewJob(**_GOOD | {"id": "x" * 129})),
    *(("invalid_job", NewJob(**_GOOD | {"task": t})) for t in ("", "a b", "\x00", "x" * 201)),
    *(("invalid_queue", NewJob(**_GOOD, queue=name)) for name in BAD_QUEUE_NAMES),
    ("unknown_queue", NewJob(**_GOOD, queue="nowhere")),
    ("unknown_queue", NewJob(**_GOOD, queue="DEFAULT")),
    ("payload_too_large", NewJob(**_GOOD, payload=PAYLOAD_TOO_LARGE)),
    *(("invalid_job", NewJob(**_GOOD, priority=number)) for number in (-101, 101, *HUGE_NUMBERS)),
    *(("invalid_job", NewJob(**_GOOD, delay_ms=number)) for number in (-1, *HUGE_NUMBERS)),
    *(("invalid_job", NewJob(**_GOOD, expires_ms=number)) for number in (-1, *HUGE_NUMBERS)),
    *(("invalid_job", NewJob(**_GOOD, key=text)) for text in UNSTORABLE_TEXTS),
    *(("invalid_job", NewJob(**_GOOD, tenant=text)) for text in UNSTORABLE_TEXTS),
    *(("invalid_job", NewJob(**_GOOD, group=text)) for text in UNSTORABLE_TEXTS),
    *(("invalid_job", NewJob(**_GOOD, labels={text: "v"})) for text in UNSTORABLE_TEXTS),
    ("invalid_job", NewJob(**_GOOD, key="k", key_window_ms=-1)),
    ("invalid_job", NewJob(**_GOOD, labels={"a": "\x00"})),
    ("invalid_job", NewJob(**_GOOD, headers={"a": "\ud800"})),
    ("invalid_job", NewJob(**_GOOD, labels={"a": "x" * (limits.PAIR_VALUE_BYTES_MAX + 1)})),
    ("invalid_job", NewJob(**_GOOD, labels={f"l{n}": "" for n in range(limits.PAIRS_MAX + 1)})),
    ("invalid_job", NewJob(**_GOOD, headers={f"h{n}": "x" * 4096 for n in range(16)})),
    *(("invalid_job", NewJob(**_GOOD, content_type=t)) for t in ("", "a\x00", "é", "x" * 128)),
)
"""Each with the code of its refusal, given that the queue `default` exists and `nowhere` not."""

storable_texts = st.sampled_from(STORABLE_TEXTS) | st.text(
    st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=40
)
any_texts = st.sampled_from((*STORABLE_TEXTS, *UNSTORABLE_TEXTS)) | st.text(max_size=40)
small_payloads = st.sampled_from([data for data in PAYLOADS if len(data) < 1_000]) | st.binary(
    max_size=60
)
payloads = st.sampled_from(PAYLOADS) | st.binary(max_size=300)
json_payloads = st.dictionaries(
    st.sampled_from("abc"), st.none() | st.integers(0, 9) | st.text(max_size=3), max_size=3
).map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass"))
