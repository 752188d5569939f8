"""MessageReceipt handles: a store reads back only its own, unaltered."""

import pytest

from holdfast.core.model import LeaseRequest, NewJob, Queue, Record
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.memory import MemoryEngine
from holdfast.ops.sqs import SEALING_KEYS
from holdfast.server.access.authorized_engine import AuthorizedEngine
from holdfast.server.access.caller import LOCAL_CALLER
from holdfast.server.sqs.receipts import (
    HANDLE_MAX,
    MessageReceipt,
    ReceiptSeal,
    read_seal,
)
from holdfast.testing.clock import ManualClock

SEAL = ReceiptSeal(bytes(32))
RECEIPT = MessageReceipt(
    queue="orders", id="5f0c0f0e-6a55-4d7c-9d4f-000000000001", token=2**53, seq=7,
    received_at=1_800_000_000_000, attempt=3,
)  # fmt: skip


@pytest.fixture
async def engine(clock: ManualClock) -> MemoryEngine:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    return engine


def test_a_sealed_receipt_is_read_back() -> None:
    for receipt in (
        RECEIPT,
        MessageReceipt("q", "m", 0, 0, 0, 0, "mail.send", is_dead=True, is_grouped=True),
    ):
        assert SEAL.open(SEAL.seal(receipt)) == receipt


def test_the_longest_receipt_is_within_the_bound() -> None:
    longest = MessageReceipt(
        queue="q" * 80, id="i" * 128, token=2**63 - 1, seq=2**63 - 1,
        received_at=253_402_300_799_999, attempt=1_000_000, task="t" * 200, is_dead=True,
    )  # fmt: skip
    assert len(SEAL.seal(longest)) <= HANDLE_MAX
    assert SEAL.open(SEAL.seal(longest)) == longest


def test_every_altered_byte_is_refused() -> None:
    handle = SEAL.seal(RECEIPT)
    for place, old in enumerate(handle):
        for new in "A-_+/=\n é":
            if new != old:
                altered = handle[:place] + new + handle[place + 1 :]
                assert SEAL.open(altered) is None, (place, new)
        for bit in range(7):
            altered = handle[:place] + chr(ord(old) ^ 1 << bit) + handle[place + 1 :]
            assert SEAL.open(altered) is None, (place, bit)
        assert SEAL.open(handle[:place]) is None
        assert SEAL.open(handle[:place] + handle[place + 1 :]) is None


@pytest.mark.parametrize(
    "handle", ["", "A", "AAAA", "=" * 8, "x" * (HANDLE_MAX + 1), "\ud800", "é"]
)
def test_nonsense_is_refused(handle: str) -> None:
    assert SEAL.open(handle) is None


def test_another_key_refuses_the_handle() -> None:
    assert ReceiptSeal(bytes(31) + b"1").open(SEAL.seal(RECEIPT)) is None


async def test_a_store_keeps_its_key(engine: MemoryEngine) -> None:
    handle = (await read_seal(engine)).seal(RECEIPT)
    assert (await read_seal(engine)).open(handle) == RECEIPT


async def test_an_unreadable_key_is_replaced(engine: MemoryEngine) -> None:
    await engine.save([Record(kind=SEALING_KEYS.name, key="receipts", value=b"{")])
    handle = (await read_seal(engine)).seal(RECEIPT)
    assert (await read_seal(engine)).open(handle) == RECEIPT


async def test_no_caller_sees_or_replaces_the_key(engine: MemoryEngine) -> None:
    await read_seal(engine)
    caller = AuthorizedEngine(engine, LOCAL_CALLER)
    assert await caller.load(SEALING_KEYS.name, limit=10) == []
    with pytest.raises(Exception, match="private to the server"):
        await caller.save([Record(kind=SEALING_KEYS.name, key="receipts", value=None, version=1)])
    assert repr(next(iter((await SEALING_KEYS.values(engine)).values()))) == "<SealingKey>"


async def test_the_lease_of_a_handle_settles_its_job_and_no_later_lease(
    engine: MemoryEngine, clock: ManualClock
) -> None:
    await engine.declare(Queue(name="orders"))
    await engine.enqueue([NewJob(id="m1", task="message", queue="orders")])
    [lease] = await engine.lease(LeaseRequest(queues=("orders",), lease_ms=1_000))
    receipt = SEAL.open(SEAL.seal(MessageReceipt.of(lease)))
    assert receipt is not None
    assert receipt.received_at == clock.wall_ms()
    stale = MessageReceipt(
        receipt.queue, receipt.id, receipt.token - 1, receipt.seq, receipt.received_at
    )
    outcomes = [
        (await engine.settle([Settlement(lease=each.lease(), verdict=Complete())]))[0]
        for each in (stale, receipt)
    ]
    assert outcomes == [Outcome.LOST, Outcome.SETTLED]
