"""Receipt handles: the lease of one received message, sealed with a key of the store.

A handle names queue, job, token and receive time, so that a message can be deleted or hidden for
longer without reading it first, also after a restart. It is authenticated, not encrypted: one that
was altered or forged is refused. The engine always compares the token.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import secrets
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core import bounds
from holdfast.core.model import Job, Lease, Reason, State
from holdfast.engines.base import Engine
from holdfast.ops.sqs import SEALING_KEY_BYTES, SEALING_KEYS, SealingKey

HANDLE_MAX = 1024
"""Characters of a handle, as on AWS."""
DEFAULT_TASK = "message"
"""The task of a message that names no other."""

_MAC_BYTES = 16
_RECEIPTS = "receipts"


class MessageReceipt(msgspec.Struct, frozen=True, array_like=True):
    """The lease of one received message. `task` is empty for the default one; `is_dead` is True for
    a dead letter and `is_grouped` for a message of a group."""

    queue: str
    id: str
    token: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    seq: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    received_at: bounds.Instant
    attempt: bounds.Count = 1
    task: str = ""
    is_dead: bool = False
    is_grouped: bool = False

    @classmethod
    def of(cls, lease: Lease) -> MessageReceipt:
        """The receipt of a lease."""
        job = lease.job
        return cls(
            queue=job.queue,
            id=job.id,
            token=lease.token,
            seq=job.seq,
            received_at=job.leased_at or 0,
            attempt=job.attempt,
            task="" if job.task == DEFAULT_TASK else job.task,
            is_dead=job.is_dead_letter,
            is_grouped=job.group is not None,
        )

    def lease(self, lease_ms: int = bounds.LEASE_MS_MIN) -> Lease:
        """The lease to renew or to settle. It has no payload; group and reason only tell the engine
        that there is one."""
        job = Job(
            id=self.id,
            task=self.task or DEFAULT_TASK,
            queue=self.queue,
            state=State.LEASED,
            seq=self.seq,
            attempt=self.attempt,
            leased_at=self.received_at,
            token=self.token,
            group="-" if self.is_grouped else None,
            reason=Reason.ATTEMPTS if self.is_dead else None,
        )
        return Lease(job=job, token=self.token, lease_ms=lease_ms)


class ReceiptSeal:
    """Writes and reads handles with one key."""

    def __init__(self, secret: bytes) -> None:
        self._mac = hashlib.blake2b(key=secret, digest_size=_MAC_BYTES, person=b"sqs-receipt")
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(MessageReceipt)

    def seal(self, receipt: MessageReceipt) -> str:
        """The handle of a receipt."""
        return _encode(self._sealed(self._encoder.encode(receipt)))

    def open(self, handle: str) -> MessageReceipt | None:
        """The receipt in a handle; None if this store did not write it."""
        if not handle or len(handle) > HANDLE_MAX or not handle.isascii():
            return None
        try:
            sealed = binascii.a2b_base64(handle.encode().translate(_TO_STANDARD), strict_mode=True)
        except binascii.Error:
            return None
        data = sealed[:-_MAC_BYTES]
        # The handle is compared as text: several texts decode to the same bytes.
        expected = _encode(self._sealed(data))
        if not hmac.compare_digest(expected.encode(), handle.encode()):
            return None
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError:
            # Another version sealed it.
            return None

    def _sealed(self, data: bytes) -> bytes:
        mac = self._mac.copy()
        mac.update(data)
        return data + mac.digest()


async def read_seal(engine: Engine) -> ReceiptSeal:
    """The seal of a store; the first call creates its key. A key that cannot be read is replaced:
    handles from before are then refused, and their messages are delivered again."""
    fresh = SealingKey(secrets.token_bytes(SEALING_KEY_BYTES))
    key = await SEALING_KEYS.update(engine, _RECEIPTS, lambda old: old or fresh)
    assert key is not None
    return ReceiptSeal(key.secret)


_TO_STANDARD, _TO_URL_SAFE = bytes.maketrans(b"-_", b"+/"), bytes.maketrans(b"+/", b"-_")


def _encode(sealed: bytes) -> str:
    return binascii.b2a_base64(sealed, newline=False).translate(_TO_URL_SAFE).decode()
