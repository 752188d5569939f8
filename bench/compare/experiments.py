"""The experiments: each takes a stage and returns what it found, one finding per question."""

from __future__ import annotations

import contextlib
import itertools
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.compare import typed
from bench.compare.products import PRODUCTS, Product
from bench.compare.stage import Failed, Servers, Stage, cpu_s, missing_strace, stage, tree

FIRST_CPU_S_MAX = 0.5
AGAIN_S_MAX = 90.0
JOB_CPU_MS_MAX = 1.0
DELAY_MS_MAX = 100.0
SETTLE_S = 2.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """`wait_s` bounds each wait for something that may never happen."""

    wait_s: float = 90.0
    retry_s: float = 45.0
    turns: int = 3
    jobs: int = 2_000
    backlog: int = 100
    delays: int = 20


QUICK = Sizes(wait_s=40.0, retry_s=20.0, turns=1, jobs=200, backlog=30, delays=5)


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to a question such as "first-run.1", and what was seen."""

    question: str
    answer: bool
    text: str


def first_run(product: Product, servers: Servers, sizes: Sizes) -> list[Finding]:
    """From an empty store to the first finished job; the least CPU time of a few turns, because
    other programs on the machine only add to it."""
    turns = []
    for _ in range(sizes.turns):
        with stage(product, servers) as place:
            place.call("enqueue", jobs=[{"label": "first"}])
            started = time.monotonic()
            with place.worker() as worker:
                done = place.wait(lambda: place.lines("end"), sizes.wait_s)
                _need(done, "the first job did not run")
                turns.append((worker.cpu_s(), time.monotonic() - started))
    used_s, elapsed_s = min(turns)
    kind = "a file" if product.store == "file" else f"a server beside it: {product.store}"
    step = f"set-up step: {' '.join(product.set_up[-2:])}" if product.set_up else "no set-up step"
    return [
        Finding("first-run.1", product.store == "file", kind),
        Finding("first-run.2", not product.set_up, step),
        Finding(
            "first-run.3",
            used_s < FIRST_CPU_S_MAX,
            f"first job after {used_s:.2f} s of CPU time of the worker ({elapsed_s:.1f} s elapsed)",
        ),
    ]


def killed(product: Product, servers: Servers, sizes: Sizes) -> list[Finding]:
    """SIGKILL all processes of a worker in the middle of a job, and start another worker."""
    with stage(product, servers) as place:
        place.call("enqueue", jobs=[{"label": "killed", "seconds": 120}])
        with place.worker() as worker:
            _need(place.wait(lambda: place.lines("start"), sizes.wait_s), "the job did not start")
            worker.kill()
        died = time.time()
        with place.worker():
            place.wait(lambda: len(place.lines("start")) > 1, sizes.wait_s)
        starts = place.lines("start")
    again_s = starts[1].at - died if len(starts) > 1 else None
    text = f"not run again within {sizes.wait_s:.0f} s"
    if again_s is not None:
        text = f"run again {again_s:.1f} s after the kill"
    return [
        Finding("worker-killed.1", again_s is not None, text),
        Finding("worker-killed.2", again_s is not None and again_s < AGAIN_S_MAX, text),
    ]


def crashing(product: Product, servers: Servers, sizes: Sizes) -> list[Finding]:
    """A job that kills its own process each time; a worker that ends is started anew."""
    runs_max = 6
    with stage(product, servers) as place:
        _with_results(place)
        ids = place.call("enqueue", jobs=[{"label": "crash"}])
        quiet_since = time.monotonic()
        seen = 0
        found = None
        while seen < runs_max and time.monotonic() - quiet_since < sizes.wait_s and not found:
            with place.worker() as worker:
                while worker.process.poll() is None and seen < runs_max and not found:
                    if len(place.lines("start")) > seen:
                        seen, quiet_since = len(place.lines("start")), time.monotonic()
                    if time.monotonic() - quiet_since > sizes.wait_s:
                        break
                    found = _set_aside(place, ids) if seen else None
                    time.sleep(0.2)
            if len(place.lines("start")) > seen:
                seen, quiet_since = len(place.lines("start")), time.monotonic()
    runs = f"{seen} run{'s' if seen > 1 else ''}"
    text = f"neither run again nor set aside after {runs}"
    if seen >= runs_max:
        text = f"not set aside after {runs}"
    if found:
        text = f"set aside after {runs}: {_short(found['error'])}"
    return [Finding("worker-killed.3", bool(found), text)]


def durable(product: Product, servers: Servers, sizes: Sizes) -> list[Finding]:
    """SIGKILL the server of the store right after enqueue; count the jobs that run afterwards."""
    jobs = 20
    with stage(product, servers) as place:
        # The queue itself is older than the kill: its creation is not what is tested.
        place.call("enqueue", jobs=[{"label": "first"}])
        with place.worker():
            _need(place.wait(lambda: place.lines("end"), sizes.wait_s), "no job ran")
        time.sleep(SETTLE_S)
        place.call("enqueue", jobs=[{"label": f"kept-{number}"} for number in range(jobs)])
        if place.server is not None:
            place.server.kill()
            place.server.restart()
        with place.worker():
            place.wait(lambda: len(place.lines("end")) > jobs, 20.0)
        kept = len(place.lines("end")) - 1
    after = "after its server was killed" if place.server is not None else "no server to kill"
    return [Finding("enqueue-durable.1", kept == jobs, f"{kept} of {jobs} jobs ran; {after}")]


def synced(product: Product, servers: Servers, sizes: Sizes) -> list[Finding]:
    """Count the calls that wait for the disk, while jobs are enqueued one by one."""
    jobs = 20
    if missing_strace():
        raise Failed("strace is not installed")
    with stage(product, servers) as place:
        place.call("enqueue", jobs=[{"label": "first"}])
        trace = place.directory / "trace"
        listed = [{"label": f"synced-{number}"} for number in range(jobs)]
        arguments: dict[str, object] = {"jobs": listed, "pause": 0.05}
        line = product.program("enqueue", arguments)
        watch = ("strace", "-f", "-qq", "-e", "trace=fsync,fdatasync,msync", "-o", str(trace))
        if place.server is None:
            place.run(line, prefix=watch)
        else:
            with _traced(place, watch):
                place.run(line)
        calls = len(re.findall(r"(?m)^\d+ +(?:fsync|fdatasync|msync)\(", trace.read_text()))
    text = f"disk syncs while {jobs} jobs were enqueued one by one: {calls}"
    return [Finding("enqueue-durable.2", calls >= jobs, text)]


def late(product: Product, servers: Servers, sizes: Sizes) -> list[Finding]:
    """Freeze a worker in the middle of a job, and thaw it while another worker runs the job."""
    lease = 3
    with stage(product, servers) as place, ExitStack() as stack:
        more = {"lease": f"{lease}s"} if product.runs == "holdfast" else {}
        [job] = place.call("enqueue", jobs=[{"label": "late", "seconds": 6}], **more)
        first = stack.enter_context(place.worker(lease=lease))
        _need(place.wait(lambda: place.lines("start"), sizes.wait_s), "the job did not start")
        first.send(signal.SIGSTOP)
        stack.enter_context(place.worker(lease=lease))
        again = place.wait(lambda: len(place.lines("start")) > 1, sizes.wait_s)
        _need(again, "no other worker took the job")
        first.send(signal.SIGCONT)
        second = place.lines("start")[1].pid
        ended = place.wait(lambda: second in [line.pid for line in place.lines("end")], 30.0)
        _need(ended, "the second run did not end")
        result = place.call("result", id=job)
    text = f"the first worker came back during the second run; the result is {result!r}"
    return [Finding("late-worker.2", result == "late, run 2", text)]


def retried(product: Product, servers: Servers, sizes: Sizes) -> list[Finding]:
    """A job that fails twice, with growing delays from about a second."""
    with stage(product, servers) as place:
        place.call("enqueue", jobs=[{"label": "fails", "fails": 2}], retry=True)
        with place.worker():
            place.wait(lambda: place.lines("end"), sizes.retry_s)
        starts = [line.at for line in place.lines("start")]
        ended = bool(place.lines("end"))
    gaps = ", ".join(f"{after - before:.1f} s" for before, after in itertools.pairwise(starts))
    text = f"run {len(starts)} times, with gaps of {gaps}" if gaps else "not retried"
    return [Finding("failures.1", ended, text)]


def put_back(product: Product, servers: Servers, sizes: Sizes) -> list[Finding]:
    """A job that failed for good is found with its error, edited and put back."""
    with stage(product, servers) as place:
        more = {"attempts": 1} if product.runs == "holdfast" else {}
        place.call("enqueue", jobs=[{"label": "dead", "fails": 1}], **more)
        with place.worker():
            found = place.call("failed")
            _need(found is not None, "no failed job was found")
            edited = place.call("put_back", id=found["id"], label="edited")
            label = "edited" if edited else "dead"
            ran = place.wait(lambda: place.lines("end", label), sizes.wait_s)
    error = _short(found["error"])
    text = f"{'put back' if ran else 'not put back'}; {error or 'no error is kept'}"
    return [
        Finding("failures.2", ran and bool(error), text),
        Finding("failures.3", ran and edited, "edited" if edited else "not edited"),
    ]


def grouped(product: Product, servers: Servers, sizes: Sizes) -> list[Finding]:
    """Six jobs of one group, on two workers with four slots each."""
    jobs = [{"label": f"g{number}", "seconds": 0.1, "group": "one"} for number in range(6)]
    with stage(product, servers) as place:
        _run_all(place, jobs, sizes)
        spans = _spans(place)
    order = [label for label, *_ in sorted(spans, key=lambda span: span[1])]
    ordered = order == [job["label"] for job in jobs] and overlap(spans) == 1
    text = f"order {', '.join(order)}; at most {overlap(spans)} at once"
    return [Finding("flow.1", ordered, text)]


def limited(product: Product, servers: Servers, sizes: Sizes) -> list[Finding]:
    """A limit of two at once for a queue, with two workers of four slots."""
    jobs = [{"label": f"l{number}", "seconds": 0.3} for number in range(8)]
    with stage(product, servers) as place:
        place.call("declare", limit=2)
        _run_all(place, jobs, sizes)
        most = overlap(_spans(place))
    return [Finding("flow.2", most == 2, f"at most {most} at once over two workers of 4 slots")]


def rated(product: Product, servers: Servers, sizes: Sizes) -> list[Finding]:
    """A rate of two a second for a queue, with two workers of four slots."""
    jobs = [{"label": f"r{number}"} for number in range(8)]
    rate: str | int = "2/s" if product.runs == "holdfast" else 2
    with stage(product, servers) as place:
        place.call("declare", rate=rate)
        _run_all(place, jobs, sizes)
        starts = sorted(line.at for line in place.lines("start"))
    took_s = starts[-1] - starts[0]
    return [Finding("flow.3", took_s >= 2.5, f"8 jobs at 2/s over two workers: {took_s:.1f} s")]


def fair(product: Product, servers: Servers, sizes: Sizes) -> list[Finding]:
    """A tenant enqueues one job while the backlog of another is being worked through."""
    backlog = [
        {"label": f"busy-{number}", "seconds": 0.05, "tenant": "busy"}
        for number in range(sizes.backlog)
    ]
    with stage(product, servers) as place:
        if product.runs == "holdfast":
            place.call("declare", fairness="shares")
        place.call("enqueue", jobs=backlog)
        with place.worker(slots=1):
            _need(place.wait(lambda: place.lines("start"), sizes.wait_s), "no job started")
            place.call("enqueue", jobs=[{"label": "quiet", "tenant": "quiet"}])
            came = time.time()
            place.wait(lambda: place.lines("start", "quiet"), sizes.wait_s)
        starts = place.lines("start")
        quiet = [line.at for line in starts if line.label == "quiet"]
        ahead = sum(1 for line in starts if quiet and came < line.at < quiet[0])
        left = sizes.backlog - sum(1 for line in starts if line.at <= came)
    text = f"{ahead} of {left} waiting jobs of the busy tenant started first"
    return [Finding("fairness.1", bool(quiet) and ahead < left / 2, text)]


def fan_in(product: Product, servers: Servers, sizes: Sizes) -> list[Finding]:
    """Three jobs, and one that runs after all of them."""
    parents = [{"label": f"parent-{number}", "seconds": 0.3} for number in range(3)]
    with stage(product, servers) as place:
        _with_results(place)
        with place.worker():
            place.call("fan_in", jobs=parents, then="child")
            ran = place.wait(lambda: place.lines("end", "child"), sizes.wait_s)
        ends = [line.at for line in place.lines("end") if line.label != "child"]
        starts = place.lines("start", "child")
    last = ran and len(ends) == 3 and len(starts) == 1 and starts[0].at >= max(ends)
    text = f"ran once, after {len(ends)} others" if last else "did not run after all others"
    return [Finding("dependencies.1", last, text), Finding("dependencies.2", last, text)]


def types(product: Product, servers: Servers, sizes: Sizes) -> list[Finding]:
    """A type checker on a wrong argument and on the type of a result."""
    with stage(product, servers, bare=True) as place:
        checked = typed.check(product.name, place.directory)
    return [
        Finding("types.1", checked.argument, checked.argument_text),
        Finding("types.2", checked.result, checked.result_text),
    ]


def refused(product: Product, servers: Servers, sizes: Sizes) -> list[Finding]:
    """A producer without a type checker passes text for a number."""
    with stage(product, servers) as place:
        answer = place.call("wrong") is True
    return [Finding("types.3", answer, "refused by enqueue" if answer else "accepted by enqueue")]


def tested(product: Product, servers: Servers, sizes: Sizes) -> list[Finding]:
    """Run a task as a test would, without any service."""
    with stage(product, servers, bare=True) as place:
        try:
            answer = place.call("tested") is True
            text = "a task ran without a service" if answer else "the task did not run"
        except Failed as error:
            answer, text = False, _short(str(error))
    return [Finding("testing.1", answer, text)]


def speed(product: Product, servers: Servers, sizes: Sizes) -> list[Finding]:
    """CPU time of workers and server for jobs that do nothing; the delay of single jobs."""
    with stage(product, servers) as place:
        place.call("many", jobs=sizes.jobs)
        server = place.server.pid if place.server is not None else None
        before_s = cpu_s(server) if server else 0.0
        with place.worker() as worker:
            _need(place.wait(lambda: place.counted() > 0, sizes.wait_s), "no job ran")
            booted_s = worker.cpu_s()
            done = place.wait(lambda: place.counted() >= sizes.jobs, 2 * sizes.wait_s)
            used_s = worker.cpu_s() - booted_s + (cpu_s(server) - before_s if server else 0.0)
            ran = place.counted()
            place.call("enqueue", jobs=[{}] * sizes.delays, pause=0.2)
            place.wait(lambda: len(place.lines("start")) >= sizes.delays, sizes.wait_s)
        delays_ms = [(line.at - float(line.label)) * 1000 for line in place.lines("start")]
    used_ms = used_s / max(ran, 1) * 1000
    median_ms = statistics.median(delays_ms)
    return [
        Finding(
            "speed.1",
            done and used_ms < JOB_CPU_MS_MAX,
            f"{used_ms:.2f} ms of CPU time per job, worker and server, over {ran:,} jobs",
        ),
        Finding(
            "speed.2",
            median_ms < DELAY_MS_MAX,
            f"single jobs started {median_ms:.0f} ms after the call of enqueue (median)",
        ),
    ]


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment, the questions it answers, and the products that have what it is about. The
    others need no run: their documentation has no such feature."""

    run: Callable[[Product, Servers, Sizes], list[Finding]]
    questions: tuple[str, ...]
    products: str = "all"


EXPERIMENTS: dict[str, Experiment] = {
    "first-run": Experiment(first_run, ("first-run.1", "first-run.2", "first-run.3")),
    "killed": Experiment(killed, ("worker-killed.1", "worker-killed.2")),
    "crashing": Experiment(
        crashing, ("worker-killed.3",), "holdfast celery rq huey procrastinate bullmq"
    ),
    "durable": Experiment(durable, ("enqueue-durable.1",)),
    "synced": Experiment(synced, ("enqueue-durable.2",)),
    "late": Experiment(late, ("late-worker.2",), "holdfast bullmq"),
    "retried": Experiment(retried, ("failures.1",)),
    "put-back": Experiment(
        put_back, ("failures.2", "failures.3"), "holdfast rq procrastinate bullmq"
    ),
    "grouped": Experiment(grouped, ("flow.1",), "holdfast procrastinate"),
    "limited": Experiment(limited, ("flow.2",), "holdfast bullmq"),
    "rated": Experiment(rated, ("flow.3",), "holdfast bullmq"),
    "fair": Experiment(fair, ("fairness.1",)),
    "fan-in": Experiment(
        fan_in, ("dependencies.1", "dependencies.2"), "holdfast celery rq huey bullmq"
    ),
    "types": Experiment(types, ("types.1", "types.2")),
    "refused": Experiment(refused, ("types.3",)),
    "tested": Experiment(tested, ("testing.1",), "holdfast celery rq huey dramatiq procrastinate"),
    "speed": Experiment(speed, ("speed.1", "speed.2")),
}


def suitable(name: str) -> list[Product]:
    """The products that an experiment is run with."""
    names = EXPERIMENTS[name].products.split()
    return [
        product
        for product in PRODUCTS
        if product.store is not None and (names == ["all"] or product.name in names)
    ]


def _need(condition: bool, text: str) -> None:
    if not condition:
        raise Failed(text)


def _short(text: str) -> str:
    """The last line of an error, for a table."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1].replace("|", "/")[:80] if lines else ""


def _with_results(place: Stage) -> None:
    """Celery stores results and counts the jobs of a chord only with a result backend."""
    if place.product.name == "celery":
        folder = place.directory / "results"
        folder.mkdir()
        place.more["COMPARE_RESULTS"] = f"file://{folder}"


def _set_aside(place: Stage, ids: list[str] | None) -> dict[str, str] | None:
    arguments = {"id": ids[0]} if place.product.name in ("celery", "huey") and ids else {}
    found: dict[str, str] | None = place.call("failed", seconds=1, **arguments)
    return found


@contextmanager
def _traced(place: Stage, watch: tuple[str, ...]) -> Iterator[None]:
    """Trace all processes of the store's server, also those that it starts meanwhile."""
    assert place.server is not None
    assert place.server.pid is not None
    pids = [text for pid in tree(place.server.pid) for text in ("-p", str(pid))]
    tracer = subprocess.Popen([*watch, *pids], start_new_session=True)
    try:
        place.wait(lambda: _is_traced(place.server.pid), 10.0)  # type: ignore[union-attr,arg-type]
        yield
    finally:
        tracer.terminate()
        tracer.wait()


def _is_traced(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "TracerPid:\t0" not in Path(f"/proc/{pid}/status").read_text()
    return False


def _run_all(place: Stage, jobs: Sequence[Mapping[str, object]], sizes: Sizes) -> None:
    place.call("enqueue", jobs=jobs)
    with place.worker(), place.worker():
        done = place.wait(lambda: len(place.lines("end")) >= len(jobs), sizes.wait_s)
    _need(done, f"{len(place.lines('end'))} of {len(jobs)} jobs ended")


def _spans(place: Stage) -> list[tuple[str, float, float]]:
    ends = {line.label: line.at for line in place.lines("end")}
    return [(line.label, line.at, ends[line.label]) for line in place.lines("start")]


def overlap(spans: list[tuple[str, float, float]]) -> int:
    """The largest number of jobs that ran at the same time."""
    return max(sum(1 for _, start, end in spans if start <= moment < end) for _, moment, _ in spans)
