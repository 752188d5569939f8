"""Quotas: of a namespace, of a tenant, of each tenant; for jobs, bytes and depth."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.model import JobFilter, LeaseRequest, NewJob, Tally, TallyBy
from holdfast.core.verdict import Complete, Settlement
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import ConfigError, EngineUnavailable, QuotaExceeded, UsageError
from holdfast.server.admin_views import show_allowance, to_allowance
from holdfast.server.callers import ANYBODY
from holdfast.server.guarded import Guarded, Watch
from holdfast.server.quotas import EACH, KIND, WHOLE, Allowance, Quota, Quotas, check_quota
from holdfast.server.settings import ServerSettings
from tests.server.house import house

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
        self.quotas = Quotas(lambda: self.engine, clock=self.clock)
        self.guarded = Guarded(self.engine, ANYBODY, Watch(quotas=self.quotas))
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


async def test_a_rate_lets_in_so_many_in_a_time_and_says_when_there_are_more() -> None:
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


async def test_over_time_no_more_come_in_than_the_rate_says() -> None:
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


async def test_depth_is_of_jobs_that_have_not_ended() -> None:
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


async def test_the_store_is_asked_now_and_then_and_counted_in_between() -> None:
    bounded = Bounded()
    await bounded.put(WHOLE, depth=50)
    refused = [await bounded.enqueue(1) for _ in range(100)]
    assert refused.count(0) == 50
    assert bounded.engine.tallies == 1
    bounded.clock.now += 1.0
    await bounded.enqueue(1)
    assert bounded.engine.tallies == 2


async def test_calls_at_once_do_not_come_in_together_where_one_has_room() -> None:
    bounded = Bounded()
    await bounded.put(WHOLE, depth=5)
    answers = await asyncio.gather(*(bounded.enqueue(3) for _ in range(10)))
    assert answers.count(0) == 1


async def test_what_comes_in_while_the_store_counts_is_counted() -> None:
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


async def test_each_tenant_has_its_own() -> None:
    bounded = Bounded()
    await bounded.put(EACH, depth=2)
    await bounded.put("tenant:big", depth=4)
    for tenant, most in (("a", 2), ("b", 2), ("big", 4)):
        answers = [await bounded.enqueue(1, tenant) for _ in range(6)]
        assert answers.count(0) == most, tenant
    assert [await bounded.enqueue(1) for _ in range(6)] == [0] * 6, "whoever is no tenant"


async def test_a_tenant_is_bounded_by_the_namespace_too_and_pays_nothing_when_refused() -> None:
    bounded = Bounded()
    await bounded.put(WHOLE, depth=3)
    await bounded.put("tenant:a", rate=Allowance(5, 60_000))
    assert await bounded.enqueue(4, "a") == 5_000
    assert await bounded.enqueue(3, "a") == 0
    await bounded.put(WHOLE, depth=100)
    assert await bounded.enqueue(2, "a") == 0
    assert await bounded.enqueue(1, "a") > 0


async def test_what_adds_nothing_costs_nothing() -> None:
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


async def test_follow_ups_are_never_refused_but_count() -> None:
    bounded = Bounded()
    await bounded.put(WHOLE, rate=Allowance(3, 60_000))
    assert await bounded.enqueue(1) == 0
    [lease] = await bounded.guarded.lease(LeaseRequest(queues=("default",)))
    then = Complete(then=tuple(bounded.jobs(5)))
    assert await bounded.guarded.settle([Settlement(lease=lease, verdict=then)]) == ["settled"]
    assert await bounded.enqueue(1) > 0


async def test_another_server_hears_of_a_quota_within_a_second() -> None:
    bounded = Bounded()
    await bounded.put(WHOLE, depth=100)
    elsewhere = Quotas(lambda: bounded.engine)
    await elsewhere.charge(bounded.jobs(1))
    await bounded.put(WHOLE, depth=0)
    elsewhere._kept._read_at -= 1
    with pytest.raises(QuotaExceeded):
        await elsewhere.charge(bounded.jobs(1))


async def test_one_that_cannot_be_read_lets_nothing_in() -> None:
    bounded = Bounded()
    await bounded.put(WHOLE, depth=100)
    [record] = await bounded.engine.load(KIND, limit=1)
    await bounded.engine.save([replace(record, value=b'{"depth":"?"}')])
    bounded.quotas._kept.forget()
    assert await bounded.enqueue(1) > 0


async def test_tenants_without_end_take_no_memory_without_end() -> None:
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
async def test_a_quota_is_of_somebody(whose: str) -> None:
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
def test_a_quota_bounds_something(quota: Quota) -> None:
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
def test_allowances_are_written_as_they_are_read(text: str, allowed: Allowance, shown: str) -> None:
    assert to_allowance("rate", text) == allowed
    assert show_allowance(allowed) == shown
    assert to_allowance("rate", shown) == allowed


async def test_over_http_it_is_429_with_the_time_to_wait() -> None:
    async with house(AUTH) as at:
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


async def test_one_namespaces_quota_is_not_anothers() -> None:
    async with house(ServerSettings(auth=True, namespaces=("a", "b"))) as at:
        tokens = [await at.token("admin", namespace=name) for name in ("a", "b")]
        await at.ask("PUT", "/v1/quotas/namespace", {"depth": 0}, token=tokens[0])
        body = {"jobs": [{"task": "t"}]}
        statuses = [
            (await at.ask("POST", "/v1/queues/default/jobs", body, token=token)).status
            for token in tokens
        ]
        assert statuses == [429, 201]
