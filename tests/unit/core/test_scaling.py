"""Advice on workers: simulated queues that follow it meet the target and do not oscillate."""

import heapq
import random
from collections import deque

import pytest
from msgspec.structs import replace

from holdfast.core.scaling import Advice, Goal, Load, advise, backlog_slots, steady_slots

GOAL = Goal(wait_ms=30_000, worker_slots=4, workers_max=100)


class World:
    """Jobs come at random, run for random times in as many slots as were advised."""

    def __init__(self, seed: int, *, run_ms: float, goal: Goal = GOAL) -> None:
        self.random = random.Random(seed)
        self.run_ms = run_ms
        self.goal = goal
        self.now = 0.0
        self.waiting: deque[float] = deque()
        self.running: list[float] = []
        self.slots = 0
        self.waits: list[tuple[float, float]] = []
        self.came: deque[float] = deque()
        self.ran: deque[float] = deque(maxlen=200)
        self.workers: list[int] = []

    def live(self, seconds: int, arrivals: float, *, delay_s: int = 15) -> None:
        """Workers are started and stopped at every look, `delay_s` apart."""
        end = self.now + seconds * 1000
        next_look, next_job = self.now, self.now + self._gap(arrivals)
        while self.now < end:
            self.now = min(next_look, next_job, self.running[0] if self.running else end, end)
            while self.running and self.running[0] <= self.now:
                heapq.heappop(self.running)
            if next_job <= self.now:
                self.waiting.append(self.now)
                self.came.append(self.now)
                next_job = self.now + self._gap(arrivals)
            if next_look <= self.now:
                self._look()
                next_look = self.now + delay_s * 1000
            while self.waiting and len(self.running) < self.slots:
                since = self.waiting.popleft()
                self.waits.append((self.now, self.now - since))
                took = self.random.expovariate(1 / self.run_ms)
                self.ran.append(took)
                heapq.heappush(self.running, self.now + took)

    def _gap(self, arrivals: float) -> float:
        return self.random.expovariate(arrivals) * 1000 if arrivals else float("inf")

    def _look(self) -> None:
        while self.came and self.came[0] < self.now - 120_000:
            self.came.popleft()
        load = Load(
            waiting=len(self.waiting),
            leased=len(self.running),
            oldest_age_ms=round(self.now - self.waiting[0]) if self.waiting else None,
            arrivals=len(self.came) / min(120, max(1, self.now / 1000)),
            run_ms=sum(self.ran) / len(self.ran) if self.ran else None,
            ended=len(self.ran),
            slots=self.slots,
            workers=self.slots // self.goal.worker_slots,
        )
        advice = advise(load, self.goal)
        self.workers.append(advice.workers)
        self.slots = advice.workers * self.goal.worker_slots

    def share_in_time(self, since_s: int) -> float:
        late = [wait for at, wait in self.waits if at >= since_s * 1000]
        return sum(wait <= self.goal.wait_ms for wait in late) / len(late)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("arrivals", "run_ms"), [(0.5, 4_000), (5, 2_000), (50, 500), (2, 20_000), (0.05, 60_000)]
)
def test_who_follows_it_meets_the_goal(seed: int, arrivals: float, run_ms: float) -> None:
    """Replay one with `-k "[arrivals-run_ms-seed]"`."""
    world = World(seed, run_ms=run_ms)
    world.live(3_600, arrivals)
    needed = arrivals * run_ms / 1000
    assert world.share_in_time(600) > 0.95
    slots = [each * GOAL.worker_slots for each in world.workers[60:]]
    assert sum(slots) / len(slots) < 2 * needed + 3 * GOAL.worker_slots
    assert max(slots) < 4 * needed + 6 * GOAL.worker_slots


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_backlog_is_worked_off_and_let_go_of(seed: int) -> None:
    world = World(seed, run_ms=2_000)
    world.live(600, 2)
    world.waiting.extend([world.now] * 3_000)
    world.live(600, 2)
    world.live(1_200, 2)
    assert world.share_in_time(1_200) > 0.97
    assert max(world.workers) <= GOAL.workers_max
    assert world.workers[-1] <= 4
    world.live(1_200, 0)
    assert world.workers[-1] == 0


def advice(**facts: object) -> Advice:
    return advise(Load(**facts), GOAL)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arrivals", "run_ms", "wait_ms", "slots"),
    [
        (2, 1_000, 445, 3),  # 3 slots: 4/9 wait, for 1 s: 444.4 ms on average
        (2, 1_000, 444, 4),
        (2, 1_000, 87, 4),  # 4 slots: 4/23 wait, for 0.5 s: 87.0 ms
        (2, 1_000, 86, 5),
        (0.3, 1_000, 429, 1),  # one slot: 0.3 wait, for 1/0.7 s: 428.6 ms
        (0.3, 1_000, 428, 2),
    ],
)
def test_erlangs_formula(arrivals: float, run_ms: float, wait_ms: int, slots: int) -> None:
    assert steady_slots(Load(arrivals=arrivals, run_ms=run_ms), wait_ms) == slots


def test_no_data() -> None:
    assert (advice().workers, advice().slots) == (0, 0)
    started = advice(waiting=100)
    assert (started.workers, started.wait_ms) == (1, None)
    assert "none has ended yet" in started.reason
    assert advice(waiting=100, slots=12, workers=3).workers == 3
    assert advise(Load(), replace(GOAL, workers_min=2)).workers == 2


def test_no_worker() -> None:
    found = advice(waiting=100, run_ms=3_000, ended=50, oldest_age_ms=0)
    assert (found.wait_ms, found.slots) == (None, 10)
    assert found.workers == 3


def test_an_unknown_age_may_be_late() -> None:
    facts = {"waiting": 150, "run_ms": 1_000, "ended": 50, "slots": 1, "leased": 1}
    unknown = advice(**facts)
    assert unknown.slots == advice(**facts, oldest_age_ms=10**9).slots == 10
    assert unknown.reason == "150 jobs wait, and for how long is unknown"


def test_who_is_late_already_gets_half_of_the_time() -> None:
    facts = {"waiting": 150, "run_ms": 1_000, "ended": 50, "slots": 1, "leased": 1}
    in_time, late, very_late = (
        advice(**facts, oldest_age_ms=age).slots for age in (0, 40_000, 10**9)
    )
    assert (in_time, late, very_late) == (5, 10, 10)


def test_nothing_waits() -> None:
    assert advice(run_ms=1_000, ended=50, slots=40, workers=10).workers == 0
    busy = advice(run_ms=1_000, ended=50, arrivals=10.0, leased=10, slots=12, workers=3)
    assert busy.workers == 3
    assert busy.wait_ms == 0


def test_everything_fails() -> None:
    facts = {"waiting": 10_000, "run_ms": 1_000, "ended": 50, "slots": 8, "workers": 2}
    broken = advice(**facts, failed=50)
    assert (broken.workers, "failed" in broken.reason) == (2, True)
    assert advice(**facts, failed=49).workers > 2


def test_failures_are_work_too() -> None:
    once = advice(arrivals=10.0, run_ms=2_000, ended=50)
    thrice = advice(arrivals=10.0, run_ms=2_000, ended=50, attempts=3.0)
    assert thrice.slots > 2.5 * once.slots


def test_paused() -> None:
    found = advice(waiting=10_000, run_ms=1_000, ended=50, paused=True)
    assert (found.workers, found.wait_ms) == (0, None)
    assert "paused" in found.reason


def test_limits_bound_it() -> None:
    facts = {"waiting": 10_000, "run_ms": 1_000, "ended": 50}
    assert advice(**facts, slots_bound=6).slots == 6
    assert advice(**facts, rate_bound=2.0).slots == 2
    assert "limits" in advice(**facts, slots_bound=6).reason


def test_bounds_of_workers() -> None:
    facts = Load(waiting=10**7, run_ms=60_000, ended=50, oldest_age_ms=10**9)
    found = advise(facts, GOAL)
    assert found.workers == 100
    assert "100 are allowed" in found.reason
    assert found.slots <= 100_000


def test_the_sums_are_sane_at_the_edges() -> None:
    zero = Load(run_ms=0.0, waiting=1, arrivals=1e9)
    assert 0 < steady_slots(zero, 1) <= 100_000
    assert 0 < backlog_slots(zero, 1) <= 100_000
    assert advise(zero, Goal(wait_ms=1, worker_slots=0)).workers == 1_000


@pytest.mark.parametrize("busy", [0.1, 1.0, 7.5, 80.0, 900.0])
def test_there_are_more_slots_than_busy_ones(busy: float) -> None:
    slots = steady_slots(Load(arrivals=busy, run_ms=1_000), 1_000)
    assert busy < slots < busy + 4 * busy**0.5 + 2
