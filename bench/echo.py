"""The bare framework: Starlette on uvicorn, with a handler that parses JSON and returns it.

`python -m bench.echo` prints its port, and ends when its standard input closes.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def echo(request: Request) -> JSONResponse:
    """Return the body of the request."""
    return JSONResponse(await request.json())


async def serve() -> None:
    """Serve on a free port until standard input closes."""
    app = Starlette(routes=[Route("/echo", echo, methods=["POST"])])
    config = uvicorn.Config(app, http="httptools", log_config=None, access_log=False)
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    server = uvicorn.Server(config)

    def stop() -> None:
        server.should_exit = True

    asyncio.get_running_loop().add_reader(0, stop)
    print(listening.getsockname()[1], flush=True)
    await server.serve([listening])


if __name__ == "__main__":
    import uvloop

    sys.exit(uvloop.run(serve()))
