"""A small API served without a socket: an operation for each form that a request can have."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast.app import Holdfast
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import OutcomeUnknown, QueueFull, Unsupported
from holdfast.server.application import Application
from holdfast.server.calls import Call
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.settings import ServerSettings
from holdfast.server.state import Server
from tests.server.asgi import Client


class Query(Struct):
    limit: Annotated[int, Meta(ge=1, le=9)] = 5
    states: list[str] = []
    ratio: float | None = None
    dry: bool = False


class Body(Struct, forbid_unknown_fields=True):
    count: int
    note: str = ""


class Loose(Struct, forbid_unknown_fields=True):
    note: str = "nothing"


@operation("GET", "/v1/things/{name}", needs=Scope.OPERATE)
async def thing(call: Call, name: str, query: Query) -> dict[str, Any]:
    return {"name": name, "query": query}


@operation("GET", "/v1/things/{name}/{number}", needs=Scope.OPERATE)
async def numbered(
    call: Call, name: Annotated[str, Meta(max_length=3)], number: Annotated[int, Meta(ge=0)]
) -> list[Any]:
    return [name, number]


@operation("POST", "/v1/things/count", needs=Scope.OPERATE, status=201, repeatable=True)
async def count(call: Call, body: Body) -> Body:
    return body


@operation("POST", "/v1/loose", needs=Scope.OPERATE, repeatable=True)
async def loose(call: Call, body: Loose) -> Loose:
    return body


@operation("DELETE", "/v1/things/{name}", needs=Scope.OPERATE, status=204)
async def remove(call: Call, name: str) -> None:
    match name:
        case "full":
            raise QueueFull("it is full")
        case "unsure":
            raise OutcomeUnknown("who knows")
        case "cannot":
            raise Unsupported("memory", "miracles")
        case "broken":
            raise ZeroDivisionError("the password is hunter2")
        case _:
            pass


@operation("GET", "/v1/text", needs=None)
async def text(call: Call) -> Annotated[bytes, "text/plain"]:
    return b"as it is"


THINGS = (thing, numbered, count, loose, remove, text)


def served(*operations: Operation, **settings: Any) -> tuple[Client, Server]:
    app = Holdfast(engine=MemoryEngine())
    server = Server(app=app, settings=ServerSettings(**settings))
    return Client(Application(server, operations or THINGS)), server
