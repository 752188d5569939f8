"""The state of the broker beside a store, for checks, explanations, metrics and alerts."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from holdfast.core.text import without_credentials
from holdfast.engines.broker import BrokerStatus
from holdfast.engines.extras import Brokered, extra
from holdfast.errors import HoldfastError

_STATUS_S_MAX = 10.0
_TEXT_MAX = 500
_WARNINGS_MAX = 20


async def read_broker_status(store: object) -> BrokerStatus | None:
    """The broker's state, without credentials; None if the store has no broker. A broker that does
    not answer is unreachable."""
    brokered = extra(store, Brokered)
    if brokered is None:
        return None
    try:
        async with asyncio.timeout(_STATUS_S_MAX):
            found = await brokered.broker().status()
    except TimeoutError:
        return BrokerStatus(error=f"no answer within {_STATUS_S_MAX:g} s")
    except HoldfastError as error:
        found = BrokerStatus(error=str(error) or error.code)
    return replace(
        found,
        error=_plain(found.error),
        version=_plain(found.version),
        warnings=tuple(map(_plain, found.warnings[:_WARNINGS_MAX])),
    )


def _plain(text: str) -> str:
    return without_credentials(" ".join(text.split()))[:_TEXT_MAX]
