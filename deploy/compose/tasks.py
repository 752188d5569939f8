"""The tasks of the example: replace this file with your application."""

from holdfast import Context, Holdfast

app = Holdfast()  # the URL in HOLDFAST_URL


@app.task
def greet(ctx: Context, name: str) -> str:
    ctx.log(f"attempt {ctx.attempt}")
    return f"hello {name}"
