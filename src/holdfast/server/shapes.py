"""The small values that requests are made of, with their bounds, as the description has them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw

from holdfast.core import limits

_SECONDS_MAX = limits.DELAY_MS_MAX // limits.SECOND_MS
_NO_NUL = r"^[^\x00]*$"

QueueName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,80}$", max_length=80, examples=["default"])
]
TaskName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_.:/-]{1,200}$", max_length=200, examples=["mail:send"])
]
JobId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:@-]{1,128}$", max_length=128)]
Name = Annotated[str, Meta(min_length=1, max_length=limits.NAME_BYTES_MAX, pattern=_NO_NUL)]
"""A key, a tenant, a group, a worker: a short text."""

MaybeName = Annotated[str, Meta(max_length=limits.NAME_BYTES_MAX, pattern=_NO_NUL)]

Text = Annotated[str, Meta(max_length=limits.ERROR_TEXT_MAX)]
"""What somebody says about it. It is cleaned before it is kept."""

Pairs = Annotated[
    dict[Name, Annotated[str, Meta(max_length=limits.PAIR_VALUE_BYTES_MAX, pattern=_NO_NUL)]],
    Meta(max_length=limits.PAIRS_MAX),
]
Seconds = (
    Annotated[float, Meta(ge=0, le=_SECONDS_MAX, description="Seconds.")]
    | Annotated[
        str,
        Meta(
            pattern=r"^[0-9]{1,6}(\.[0-9]{1,3})?(ms|s|m|h|d|w)?$",
            description="With its unit: 250ms, 30s, 5m, 2h, 1d, 1w; without one it is seconds.",
            examples=["30s", "5m"],
        ),
    ]
)
Instant = Annotated[
    str,
    Meta(
        max_length=40,
        description="So long ago, such as 1h; or a moment with its time zone in RFC 3339.",
        examples=["1h", "2026-01-31T08:00:00Z"],
    ),
]
Priority = Annotated[int, Meta(ge=limits.PRIORITY_MIN, le=limits.PRIORITY_MAX)]
Attempts = Annotated[int, Meta(ge=0, le=limits.ATTEMPTS_MAX)]
Many = Annotated[int, Meta(ge=1, le=limits.COUNT_EXACT_MAX)]
"""How many jobs one call acts on, at most."""

Rate = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]{1,7}/[0-9]{0,6}(ms|s|m|h|d)( burst [0-9]{1,7})?$",
        examples=["10/s", "100/m burst 20"],
    ),
]
Token = Annotated[int, Meta(ge=0, le=2**63 - 1, description="The one that the lease came with.")]
Json = Annotated[Raw, Meta(description="Any JSON.")]
