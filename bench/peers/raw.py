"""Raw SQL, the reference of single calls: one insert and one commit for each job."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.peers import program
from bench.peers.program import Arguments
from bench.raw_postgres import RawPostgres
from bench.raw_sqlite import RawSqlite
from bench.subject import Subject


def prepare(_arguments: Arguments) -> None:
    """Its own tables are made when it connects."""


def trickle(arguments: Arguments) -> None:
    async def act() -> None:
        subject: Subject
        scheme, _, path = arguments.place.partition(":///")
        if scheme == "sqlite":
            subject = RawSqlite(Path(path))
        else:
            subject = await RawPostgres.open(arguments.place, connections=1)
        async for _ in program.asteadily(arguments):
            await subject.enqueue(subject.make(1))
        await subject.close()

    asyncio.run(act())


def _none(_arguments: Arguments) -> None:
    raise NotImplementedError("raw SQL has no batches and no workers here: see `bench engines`")


if __name__ == "__main__":
    program.main(prepare=prepare, enqueue=_none, work=_none, trickle=trickle)
