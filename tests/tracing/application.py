"""A worker application: a task with a span that enqueues another task."""

from opentelemetry import trace

from holdfast import Holdfast
from holdfast.worker.child.context import Context

app = Holdfast()


@app.task(name="greet")
def greet(name: str, ctx: Context) -> None:
    with trace.get_tracer("tests").start_as_current_span("inside"):
        wave.enqueue(name)
    ctx.then(wave.job(f"{name} again"))


@app.task(name="wave")
async def wave(name: str) -> str:
    return name
