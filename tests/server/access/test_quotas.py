"""Quotas: of a namespace, of a tenant, of each tenant; for jobs, bytes and depth."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.model import JobFilter, LeaseRequest, NewJob, Receipt, Tally, TallyBy
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import ConfigError, EngineUnavailable, QuotaExceeded, UsageError
from holdfast.ops.quotas import (
    EACH,
    QUOTA_KIND,
    WHOLE,
    Allowance,
    Quota,
    check_quota,
    show_allowance,
    to_allowance,
)
from holdfast.server.access.authorized_engine import AccessControls, AuthorizedEngine
from holdfast.server.access.caller import LOCAL_CALLER
from holdfast.server.access.quotas import QuotaEnforcer
from holdfast.server.settings import ServerSettings
from tests.server.direct_server import direct_server

AUTH = ServerSettings(auth=True)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Counting(MemoryEngine):
    def __init__(self) -> None:
        super().__init__()
        self.tallies = 0
        self.away = False

    async def tally(self, wanted: JobFilter, by: TallyBy, *, limit: int) -> list[Tally]:
        self.tallies += wanted.ids is None
        return await super().tally(wanted, by, limit=limit)

    async def enqueue(self, jobs: Any) -> Any:
        if self.away:
            raise EngineUnavailable("away")
        return await super().enqueue(jobs)


class Bounded:
    def __init__(self) -> None:
        self.engine = Counting()
        self.clock = Clock()
        self.quotas = QuotaEnforcer(lambda: self.engine, clock=self.clock)
        self.guarded = AuthorizedEngine(
            self.engine, LOCAL_CALLER, AccessControls(quotas=self.quotas)
        )
        self.made = 0

    async def put(self, whose: str, **bounds: Any) -> None:
        await self.engine.open()
        await self.quotas.put(whose, Quota(**bounds))

    def jobs(self, count: int, tenant: str | None = None, size: int = 0) -> list[NewJob]:
        self.made += count
        return [
            NewJob(id=f"j{self.made - number}", task="t", tenant=tenant, payload=b"x" * size)
            for number in range(count)
        ]

    async def enqueue(self, count: int, tenant: str | None = None, size: int = 0) -> int:
        """How long to wait; 0 when they came in."""
        try:
            receipts = await self.guarded.enqueue(self.jobs(count, tenant, size))
        except QuotaExceeded as error:
            return error.retry_ms
        assert all(each.status == "new" for each in receipts)
        return 0


async def test_a_rate_bounds_new_jobs_and_says_when_to_retry() -> None:
    bounded = Bounded()
    await bounded.put(WHOLE, rate=Allowance(10, 1_000))
    assert await bounded.enqueue(6) == 0
    assert await bounded.enqueue(6) == 0, "a call is never divided: the next pay for it"
    wait_ms = await bounded.enqueue(1)
    assert 300 <= wait_ms <= 301
    bounded.clock.now += wait_ms / 1000
    assert await bounded.enqueue(1) == 0
    bounded.clock.now += 3_600
    assert [await bounded.enqueue(1) for _ in range(11)].count(0) == 10, "it does not pile up"


async def test_a_rate_holds_over_time() -> None:
    bounded = Bounded()
    await bounded.put(WHOLE, rate=Allowance(10, 1_000))
    came_in = 0
    for _ in range(1_000):
        bounded.clock.now += 0.05
        came_in += 3 if await bounded.enqueue(3) == 0 else 0
    assert 480 <= came_in <= 515


async def test_bytes_are_counted_like_jobs() -> None:
    bounded = Bounded()
    await bounded.put(WHOLE, bytes=Allowance(1_000, 1_000))
    assert await bounded.enqueue(2, size=400) == 0
    assert await bounded.enqueue(1, size=400) == 0
    assert 201 <= await bounded.enqueue(1) <= 202
    bounded.clock.now += 10
    assert await bounded.enqueue(1, size=1) == 0


async def test_depth_counts_unfinished_jobs() -> None:
    bounded = Bounded()
    await bounded.put(WHOLE, depth=5)
    assert await bounded.enqueue(3) == 0
    assert await bounded.enqueue(3) == 5_000
    assert await bounded.enqueue(2) == 0
    assert await bounded.enqueue(1) == 5_000
    leases = await bounded.engine.lease(LeaseRequest(queues=("default",), limit=5))
    bounded.clock.now += 10
    assert await bounded.enqueue(1) == 5_000, "those that run count too"
    await bounded.engine.settle([Settlement(lease=each, verdict=Complete()) for each in leases[:2]])
    bounded.clock.now += 10
    assert await bounded.enqueue(3) == 5_000
    assert await bounded.enqueue(2) == 0


async def test_depth_is_read_rarely_and_counted_in_between() -> None:
    bounded = Bounded()
    await bounded.put(WHOLE, depth=50)
    refused = [await bounded.enqueue(1) for _ in range(100)]
    assert refused.count(0) == 50
    assert bounded.engine.tallies == 1
    bounded.clock.now += 1.0
    await bounded.enqueue(1)
    assert bounded.engine.tallies == 2


async def test_concurrent_calls_do_not_exceed_the_quota() -> None:
    bounded = Bounded()
    await bounded.put(WHOLE, depth=5)
    answers = await asyncio.gather(*(bounded.enqueue(3) for _ in range(10)))
    assert answers.count(0) == 1


async def test_jobs_enqueued_during_a_count_are_counted() -> None:
    bounded = Bounded()
    await bounded.put(WHOLE, depth=5)
    counting, go_on = asyncio.Event(), asyncio.Event()
    tally = bounded.engine.tally

    async def slow(*given: Any, **more: Any) -> list[Tally]:
        found = await tally(*given, **more)
        counting.set()
        await go_on.wait()
        return found

    bounded.engine.tally = slow  # type: ignore[method-assign]
    waiting = asyncio.create_task(bounded.enqueue(3))
    await counting.wait()
    await bounded.quotas.charge(bounded.jobs(3), anyway=True)
    go_on.set()
    assert await waiting == 5_000


async def test_each_tenant_has_its_own_quota() -> None:
    bounded = Bounded()
    await bounded.put(EACH, depth=2)
    await bounded.put("tenant:big", depth=4)
    for tenant, most in (("a", 2), ("b", 2), ("big", 4)):
        answers = [await bounded.enqueue(1, tenant) for _ in range(6)]
        assert answers.count(0) == most, tenant
    assert [await bounded.enqueue(1) for _ in range(6)] == [0] * 6, "whoever is no tenant"


async def test_a_refused_tenant_is_not_charged_for_the_namespace() -> None:
    bounded = Bounded()
    await bounded.put(WHOLE, depth=3)
    await bounded.put("tenant:a", rate=Allowance(5, 60_000))
    assert await bounded.enqueue(4, "a") == 5_000
    assert await bounded.enqueue(3, "a") == 0
    await bounded.put(WHOLE, depth=100)
    assert await bounded.enqueue(2, "a") == 0
    assert await bounded.enqueue(1, "a") > 0


async def test_duplicates_are_not_charged() -> None:
    bounded = Bounded()
    await bounded.put(WHOLE, rate=Allowance(4, 60_000), depth=4)
    jobs = bounded.jobs(4)
    await bounded.guarded.enqueue(jobs[:3])
    for _ in range(5):
        await bounded.guarded.enqueue(jobs[:3])
    bounded.engine.away = True
    with pytest.raises(EngineUnavailable):
        await bounded.guarded.enqueue(jobs[3:])
    bounded.engine.away = False
    await bounded.guarded.enqueue(jobs[3:])
    assert await bounded.enqueue(1) > 0


async def test_follow_ups_count_but_are_never_refused() -> None:
    bounded = Bounded()
    await bounded.put(WHOLE, rate=Allowance(3, 60_000))
    assert await bounded.enqueue(1) == 0
    [lease] = await bounded.guarded.lease(LeaseRequest(queues=("default",)))
    then = Complete(then=tuple(bounded.jobs(5)))
    assert await bounded.guarded.settle([Settlement(lease=lease, verdict=then)]) == ["settled"]
    assert await bounded.enqueue(1) > 0


async def test_other_servers_apply_a_quota_within_a_second() -> None:
    bounded = Bounded()
    await bounded.put(WHOLE, depth=100)
    elsewhere = QuotaEnforcer(lambda: bounded.engine)
    await elsewhere.charge(bounded.jobs(1))
    await bounded.put(WHOLE, depth=0)
    elsewhere._cache._read_at -= 1
    with pytest.raises(QuotaExceeded):
        await elsewhere.charge(bounded.jobs(1))


async def test_a_broken_quota_refuses_all_jobs() -> None:
    bounded = Bounded()
    await bounded.put(WHOLE, depth=100)
    [record] = await bounded.engine.load(QUOTA_KIND, limit=1)
    await bounded.engine.save([replace(record, value=b'{"depth":"?"}')])
    bounded.quotas._cache.forget()
    assert await bounded.enqueue(1) > 0


async def test_memory_for_tenants_is_bounded() -> None:
    bounded = Bounded()
    await bounded.put(EACH, rate=Allowance(1_000, 1_000))
    for number in range(0, 12_000, 1_000):
        jobs = [
            NewJob(id=f"t{number + each}", task="t", tenant=f"t{number + each}")
            for each in range(1_000)
        ]
        await bounded.quotas.charge(jobs)
    assert len(bounded.quotas._uses) == 10_000


@pytest.mark.parametrize("whose", ["", "tenant:", "x", "*", "tenants:a", "tenant:\0"])
async def test_a_quota_needs_a_valid_owner(whose: str) -> None:
    bounded = Bounded()
    with pytest.raises(UsageError, match=r"quota|tenant"):
        await bounded.put(whose, depth=1)
    assert await bounded.quotas.all() == {}


@pytest.mark.parametrize(
    "quota",
    [
        Quota(),
        Quota(depth=-1),
        Quota(depth=100_000),
        Quota(rate=Allowance(0, 1)),
        Quota(bytes=Allowance(1, 0)),
        Quota(rate=Allowance(1, 86_400_001)),
    ],
    ids=str,
)
def test_a_quota_needs_a_bound(quota: Quota) -> None:
    with pytest.raises(ConfigError):
        check_quota(quota)


@pytest.mark.parametrize(
    ("text", "allowed", "shown"),
    [
        ("100/s", Allowance(100, 1_000), "100/s"),
        ("10MB/m", Allowance(10_000_000, 60_000), "10000000/m"),
        ("5/10m", Allowance(5, 600_000), "5/10m"),
        ("1kB/100ms", Allowance(1_000, 100), "1000/100ms"),
        ("7/1h", Allowance(7, 3_600_000), "7/h"),
    ],
)
def test_allowances_round_trip(text: str, allowed: Allowance, shown: str) -> None:
    assert to_allowance("rate", text) == allowed
    assert show_allowance(allowed) == shown
    assert to_allowance("rate", shown) == allowed


async def test_an_exceeded_quota_is_429_with_retry_after() -> None:
    async with direct_server(AUTH) as at:
        admin, mine = await at.token("admin"), await at.token("produce")
        put = await at.ask("PUT", "/v1/quotas/namespace", {"rate": "2/m"}, token=admin)
        assert put.json == {"whose": "namespace", "depth": None, "rate": "2/m", "bytes": None}
        body = {"jobs": [{"task": "t"}, {"task": "t"}]}
        assert (await at.ask("POST", "/v1/queues/default/jobs", body, token=mine)).status == 201
        reply = await at.ask("POST", "/v1/queues/default/jobs", body, token=mine)
        assert (reply.status, reply.code) == (429, "quota_exceeded")
        assert 1 <= int(reply.headers["retry-after"]) <= 30
        assert (await at.ask("GET", "/v1/quotas", token=mine)).status == 403
        listed = await at.ask("GET", "/v1/quotas", token=admin)
        assert [each["whose"] for each in listed.json["quotas"]] == ["namespace"]
        assert (await at.ask("DELETE", "/v1/quotas/namespace", token=admin)).status == 204
        assert (await at.ask("DELETE", "/v1/quotas/namespace", token=admin)).status == 404
        assert (await at.ask("POST", "/v1/queues/default/jobs", body, token=mine)).status == 201


async def test_quotas_are_separate_by_namespace() -> None:
    async with direct_server(ServerSettings(auth=True, namespaces=("a", "b"))) as at:
        tokens = [await at.token("admin", namespace=name) for name in ("a", "b")]
        await at.ask("PUT", "/v1/quotas/namespace", {"depth": 0}, token=tokens[0])
        body = {"jobs": [{"task": "t"}]}
        statuses = [
            (await at.ask("POST", "/v1/queues/default/jobs", body, token=token)).status
            for token in tokens
        ]
        assert statuses == [429, 201]


class Held(MemoryEngine):
    """Takes jobs in only when it is let to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        self.asked.set()
        await self.go.wait()
        return await super().enqueue(jobs)


async def bounded(**bounds: Any) -> tuple[Held, AuthorizedEngine, Clock]:
    engine, clock = Held(), Clock()
    await engine.open()
    quotas = QuotaEnforcer(lambda: engine, clock=clock)
    await quotas.put(WHOLE, Quota(**bounds))
    return engine, AuthorizedEngine(engine, LOCAL_CALLER, AccessControls(quotas=quotas)), clock


def jobs(name: str, count: int) -> list[NewJob]:
    return [NewJob(id=f"{name}{number}", task="t") for number in range(count)]


async def test_jobs_under_way_during_a_count_are_counted() -> None:
    engine, guarded, clock = await bounded(depth=10)
    engine.go.clear()
    first = asyncio.create_task(guarded.enqueue(jobs("a", 8)))
    await engine.asked.wait()
    # Long enough that the store is asked again, which knows of none of them.
    clock.now += 60
    with pytest.raises(QuotaExceeded):
        await guarded.enqueue(jobs("b", 8))
    engine.go.set()
    await first
    clock.now += 60
    await guarded.enqueue(jobs("c", 2))
    with pytest.raises(QuotaExceeded):
        await guarded.enqueue(jobs("d", 1))
    assert sum(each.count for each in await engine.tally(JobFilter(), "state", limit=9)) == 10


async def test_a_cancelled_enqueue_frees_its_charge() -> None:
    engine, guarded, clock = await bounded(depth=10)
    engine.go.clear()
    left = asyncio.create_task(guarded.enqueue(jobs("a", 8)))
    await engine.asked.wait()
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    engine.go.set()
    clock.now += 60
    await guarded.enqueue(jobs("b", 10))


async def test_follow_ups_of_a_lost_lease_are_not_charged() -> None:
    _, guarded, clock = await bounded(rate=Allowance(3, 1_000))
    await guarded.enqueue(jobs("a", 1))
    [lease] = await guarded.lease(LeaseRequest(queues=("default",)))
    stolen = Settlement(
        lease=type(lease)(job=lease.job, token=lease.token + 1, lease_ms=lease.lease_ms),
        verdict=Complete(then=tuple(jobs("f", 1_000))),
    )
    assert await guarded.settle([stolen]) == [Outcome.LOST]
    await guarded.enqueue(jobs("b", 1))
    clock.now += 1
    await guarded.enqueue(jobs("c", 1))
