"""All fixed bounds: sizes in bytes, durations in milliseconds, name patterns. Where a queue has its
own setting, the value here is its default. The types are for fields of stored records.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from msgspec import Meta

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

QUEUE_PAYLOAD_MAX = 1024 * 1024
PAYLOAD_MAX = QUEUE_PAYLOAD_MAX + 16 * 1024
"""The largest `payload_max` of a queue: room for an envelope around 1 MiB."""
RESULT_MAX = 1024 * 1024
CHECKPOINT_MAX = 1024 * 1024
OUTPUT_MAX = 128 * 1024
RECORD_MAX = 256 * 1024
ERROR_TEXT_MAX = 16 * 1024

BATCH_MAX = 1_000
FOLLOW_UPS_MAX = 1_000
PAGE_MAX = 1_000
SCAN_MAX = 100_000
COUNT_EXACT_MAX = 10_000
COUNT_FAR_MAX = 1_000_000

LIMITS_MAX = 16
WEIGHTS_MAX = 1_000
WEIGHT_MAX = 1_000
GROUP_BATCH_MAX = 100
PARENTS_MAX = 10_000
CASCADE_MAX = 10_000
RATE_COUNT_MAX = 1_000_000
SLOTS_MAX = 10_000_000

PRIORITY_MIN, PRIORITY_MAX = -100, 100
ATTEMPTS_MAX = 1_000_000
RELEASES_MAX = 20
REROUTES_MAX = 100

DELAY_MS_MAX = 100 * 365 * DAY_MS
LEASE_MS_MIN, LEASE_MS_MAX = 10, 7 * DAY_MS
WAIT_MS_MAX = HOUR_MS
RETENTION_MS_MAX = 100 * 365 * DAY_MS
KEY_WINDOW_MS = DAY_MS
INSTANT_MAX = 253_402_300_799_999
"""The end of the year 9999, the last that RFC 3339 can write."""
COUNT_MAX = 2**53

NAME_BYTES_MAX = 256
PAIRS_MAX = 64
PAIR_VALUE_BYTES_MAX = 4096
EXTRA_BYTES_MAX = 64 * 1024

QUEUE_NAME_MAX = 80
QUEUE_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{QUEUE_NAME_MAX}}}\Z")
TASK_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,200}\Z")
JOB_ID = re.compile(r"[A-Za-z0-9_.:@-]{1,128}\Z")
NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,80}\Z")
RECORD_KIND = re.compile(r"[a-z0-9_-]{1,40}\Z")
CONTENT_TYPE = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,126}\Z")

Instant: TypeAlias = Annotated[int, Meta(ge=0, le=INSTANT_MAX)]
Span: TypeAlias = Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
