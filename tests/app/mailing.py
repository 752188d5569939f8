"""A task with an option of every sort, for the tests of tasks."""

from collections.abc import Callable

from holdfast import Context, Holdfast, Task


def make(app: Holdfast) -> Task[..., int, Callable[..., int]]:
    @app.task(
        queue="mail",
        max_attempts=5,
        max_crashes=2,
        backoff="exponential(2s, max=10m)",
        timeout="60s",
        lease="30s",
        priority=3,
        expires="1d",
        retry_on=ConnectionError,
        give_up_on=(ValueError, TypeError),
    )
    def send(to: str, *, ctx: Context) -> int:
        ctx.log("to", to)
        ctx.progress(0.5)
        return len(to) * ctx.attempt

    return send
