"""The SQS message that a job came in, as its headers tell it, and as its handler gets it. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.core.model import RECEIPT, Job

ID_HEADER: Final = f"{RECEIPT}message-id"
HANDLE_HEADER: Final = f"{RECEIPT}receipt-handle"
URL_HEADER: Final = f"{RECEIPT}queue-url"
ARN_HEADER: Final = f"{RECEIPT}queue-arn"
RECEIVED_HEADER: Final = f"{RECEIPT}received-at"
POISON_HEADER: Final = f"{RECEIPT}poison"


class SqsDelivery(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One receipt of a message. `visible_at` is when it would become visible to others, in
    milliseconds since 1970: the worker extends it while the job runs. `poison` is true for a
    message of a dead-letter queue."""

    message_id: str
    """`MessageId` of SQS."""
    queue_name: str
    queue_url: str
    queue_arn: str
    receipt_handle: str
    """Handle of this receipt."""
    visible_at: int
    poison: bool = False


def read_delivery(job: Job) -> SqsDelivery:
    """The message of a job that the engine on SQS leased."""
    headers = job.headers
    arn = headers.get(ARN_HEADER, "")
    return SqsDelivery(
        message_id=headers.get(ID_HEADER, ""),
        queue_name=arn.rpartition(":")[2],
        queue_url=headers.get(URL_HEADER, ""),
        queue_arn=arn,
        receipt_handle=headers.get(HANDLE_HEADER, ""),
        visible_at=job.deadline_at or 0,
        poison=POISON_HEADER in headers,
    )
