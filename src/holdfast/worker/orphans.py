"""What commands leave behind: processes that outlived their parent and came to the subreaper.

Each belongs to a command, by its session or by the marker in its environment. One that shed both
may be anybody's that ran when it was found, and stays until the last of those has ended.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from holdfast.worker import processes
from holdfast.worker.running import Running

_LIST_BYTES = 65_536


class Orphans:
    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id.encode()
        self._owners: dict[int, frozenset[Running]] = {}
        self._by_session: dict[int, Running] = {}
        self._by_marker: dict[tuple[bytes, bytes], Running] = {}
        self._children = _Children()

    def __len__(self) -> int:
        return len(self._owners)

    def watch(self, running: Running) -> None:
        """From when it has started; until `leave`, when nothing of it is left."""
        self._by_session[running.pid] = running
        self._by_marker[running.marker] = running

    def leave(self, running: Running) -> None:
        if self._by_session.get(running.pid) is running:
            del self._by_session[running.pid]
        if self._by_marker.get(running.marker) is running:
            del self._by_marker[running.marker]

    def of(self, running: Running) -> list[int]:
        """Those that keep its job from ending: its own, and such that are nobody else's."""
        return [
            pid
            for pid, owners in self._owners.items()
            if running in owners and not any(one.living for one in owners if one is not running)
        ]

    def forget(self, pid: int) -> None:
        """It is dead and buried."""
        self._owners.pop(pid, None)

    def sweep(self, leaders: Collection[int]) -> bool:
        """Find new ones among the children of this process, and kill those whose time is over:
        whether there were any of these."""
        for pid in self._children.read():
            if pid not in leaders and pid not in self._owners:
                self._owners[pid] = self._find_owners(pid)
        doomed = [
            pid for pid, owners in self._owners.items() if not any(one.living for one in owners)
        ]
        for pid in doomed:
            for each in (*processes.descendants(pid), pid):
                processes.kill(each)
        return bool(doomed)

    def _find_owners(self, pid: int) -> frozenset[Running]:
        stat = processes.stat(pid)
        if stat is not None and stat.session in self._by_session:
            return frozenset((self._by_session[stat.session],))
        has = processes.environment(pid)
        if has.get(b"HOLDFAST_WORKER_ID") == self._worker_id:
            mark = has.get(b"HOLDFAST_JOB_ID", b""), has.get(b"HOLDFAST_TOKEN", b"")
            owner = self._by_marker.get(mark)
            return frozenset(() if owner is None else (owner,))
        return frozenset(self._by_session.values())


class _Children:
    """The kernel's list of this process's children, kept open: it is read after each command. Here
    runs one thread, which has them all."""

    def __init__(self) -> None:
        pid = os.getpid()
        self._file = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY)

    def read(self) -> list[int]:
        text = b""
        while part := os.pread(self._file, _LIST_BYTES, len(text)):
            text += part
        return [int(pid) for pid in text.split()]
