"""A crew whose children are doubles, and what it tells."""

from typing import Any

from holdfast.core.model import Failure, Job, Lease, Note, Queue
from holdfast.worker.clock import boot_s
from holdfast.worker.crew import Crew
from holdfast.worker.hand import Hand, Held, Kind
from holdfast.worker.wire import ChildSetup, Ending, TaskInfo
from tests.worker.doubles import FakeLink
from tests.worker.running import until

SETUP = ChildSetup(worker="", worker_id="1", slots=2, target="a:app")
COMMANDS = ChildSetup(worker="", worker_id="1", slots=2)


class Listening:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.endings: dict[str, Ending] = {}
        self.crashes: dict[str, tuple[Failure, bool]] = {}
        self.notes: list[tuple[str, Note]] = []
        self.tasks: dict[str, TaskInfo] = {}
        self.failure: Failure | None = None

    def ended(self, held: Held, ending: Ending) -> None:
        assert held.job.id not in self.endings
        self.endings[held.job.id] = ending

    def crashed(self, held: Held, failure: Failure, *, alone: bool) -> None:
        assert held.job.id not in self.crashes
        self.crashes[held.job.id] = (failure, alone)

    def noted(self, held: Held, note: Note) -> None:
        self.notes.append((held.job.id, note))

    def learned(self, tasks: dict[str, TaskInfo]) -> None:
        self.tasks = dict(tasks)

    def broken(self, failure: Failure) -> None:
        self.failure = failure


class Stage:
    """A crew of doubles."""

    def __init__(self, *, processes: int = 1, commands: bool = False, **fields: Any) -> None:
        self.ears = Listening()
        self.links: list[FakeLink] = []
        self.hand = Hand()
        self.crew = Crew(
            self.ears,
            lambda name: Queue(name=name, **fields),
            python=SETUP,
            processes=processes,
            commands=COMMANDS if commands else None,
            make=FakeLink,
        )

    async def start(self, *tasks: TaskInfo) -> list[FakeLink]:
        await self.crew.start("w")
        self.links = [link for link in self.crew._seats if isinstance(link, FakeLink)]
        for link in self.links:
            link.ready(*(tasks or (TaskInfo("work"), TaskInfo("many", batch=3))))
        return self.links

    def give(
        self, ids: str, task: str = "work", kind: Kind = "python", **fields: Any
    ) -> list[Held]:
        leases = [
            Lease(job=Job(id=id_, task=task, queue="default", **fields), token=1, lease_ms=60_000)
            for id_ in ids
        ]
        helds = self.hand.take(leases, boot_s(), lambda _job: kind)
        self.crew.give(helds)
        return helds

    async def newest(self, count: int) -> FakeLink:
        """A link that was made meanwhile, when there are so many."""
        await until(lambda: len(self.crew._seats) == count, "another child")
        link = list(self.crew._seats)[-1]
        assert isinstance(link, FakeLink)
        return link


def ids_of(link: FakeLink) -> list[str]:
    """The jobs of each call it was given."""
    return ["".join(given.id for given in call.jobs) for call in link.calls]
