"""What the supervisor looks after while the engine runs: who belongs to it, what memory it shares, whether its own folder is there."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from typing import TYPE_CHECKING

from . import procfs
from .ending import GPU_QUERY, has_nvidia_smi, read_gpu_memory, remove_tree
from .loop import Task
from .members import HOOK, Member, cgroup_pids, members

if TYPE_CHECKING:
    from .supervisor import Supervisor

SAVED_LIMIT = 1 << 20
SHORT_LIVED_SECONDS = 3.0
LOOKING_SHARE = 0.01  # of one core, at most, for looking through all processes of a busy machine


class Keeper:
    """Looks at its folder every second; at the engine's processes every second while it starts or /dev/shm changes, else every five.

    Less often where that is expensive: see LOOKING_SHARE.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._s = supervisor
        self.shared_memory: set[str] = set()
        self.gpu: dict[str, int] | None = None
        self._gpu_query: int | None = None
        self._members: dict[int, tuple[int, float, str]] = {}
        self._ticks: dict[int, int] = {}
        self._paused: set[int] = set()
        self._stamps = (0, 0)
        self._files: dict[str, tuple[float, bytes]] = {}

    def task(self) -> Task:
        self._ask_gpus()
        due = soonest = 0.0
        while True:
            yield 1.0
            self._hear_gpus()
            now = time.monotonic()
            if now >= due or (now >= soonest and _stamp() != self._stamps[0]):
                used = time.process_time()
                self.look()
                now, used = time.monotonic(), time.process_time() - used
                soonest = now + used / LOOKING_SHARE
                due = max(soonest, now if self._s.ready_seconds is None else now + 5.0)
            self._keep_folder()
            self._s.log.reopen_if_gone()
            self._s.events.flush()

    def _ask_gpus(self) -> None:
        """What the GPUs held before, beside the engine's first seconds of importing; the driver may take a second to answer."""
        if not has_nvidia_smi():
            return
        output = os.open(os.path.join(self._s.runtime, "gpu.txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._gpu_query = self._s.children.spawn(GPU_QUERY, {HOOK: self._s.run_id}, stdout=output)
        os.close(output)

    def _hear_gpus(self) -> None:
        if self._gpu_query is not None and self._s.children.status(self._gpu_query) is not None:
            self._gpu_query = None
            with contextlib.suppress(OSError), open(os.path.join(self._s.runtime, "gpu.txt")) as file:
                self.gpu = read_gpu_memory(file.read())

    def watch(self, pid: int) -> None:
        """Notices the end of a process that is not our child (an adopted engine, a worker) by its pidfd."""
        try:
            descriptor = os.pidfd_open(pid)
        except (OSError, AttributeError):
            return
        found = procfs.process(pid)
        if found is None:
            os.close(descriptor)
            return
        name = procfs.command(pid)[:80]
        self._ticks[pid] = found.start_ticks
        self._members[pid] = (descriptor, time.monotonic(), name)
        self._s.loop.selector.register(descriptor, selectors.EVENT_READ, lambda events: self._gone(pid))

    def _gone(self, pid: int) -> None:
        descriptor, since, name = self._members.pop(pid)
        self._ticks.pop(pid, None)
        self._paused.discard(pid)
        self._s.loop.selector.unregister(descriptor)
        os.close(descriptor)
        engine = self._s.engine
        if engine is not None and engine.pid == pid:
            if engine.output is None and not engine.environment and self._s.exit is None:
                self._s.engine_exited(None)
        elif time.monotonic() - since > SHORT_LIVED_SECONDS and self._s.state in ("starting", "ready"):
            self._s.event("member-exited", {"pid": pid, "command": name})

    def look(self) -> None:
        """Notes new members and the shared memory they hold: after a sudden death there is nobody to ask."""
        if self._s.engine is None:
            return
        before, segments = self.known(), len(self.shared_memory)
        changed, current = self._shared_memory_changed(), self._current()
        self._s.oom.note(m.process.pid for m in current)
        for member in current:
            pid = member.process.pid
            self._note_pause(member)
            if changed or pid not in self._members:
                self.shared_memory |= procfs.shared_memory(pid)
            if pid not in self._members:
                self.watch(pid)
        if self.known() != before or len(self.shared_memory) != segments:
            self._s.save()

    def _shared_memory_changed(self) -> bool:
        """Whether something was made or removed in /dev/shm since the last look but one: a process's maps are long, and rarely change."""
        stamp = _stamp()
        changed = stamp != self._stamps[0]
        self._stamps = (self._stamps[1], stamp)
        return changed

    def _note_pause(self, member: Member) -> None:
        """Somebody stopped (SIGSTOP) or continued a process of the engine; its main process is our child, and the kernel tells of that."""
        pid, stopped = member.process.pid, member.process.state in "Tt"
        if self._s.engine is None or pid == self._s.engine.pid or stopped == (pid in self._paused):
            return
        (self._paused.add if stopped else self._paused.discard)(pid)
        self._s.event("member-paused" if stopped else "member-continued", {"pid": pid, "command": procfs.command(pid)[:80]})

    def known(self) -> list[list[int]]:
        """[pid, start ticks] of every living member that was seen."""
        return [[pid, ticks] for pid, ticks in sorted(self._ticks.items())]

    def _current(self) -> list[Member]:
        assert self._s.engine is not None
        claim = self._s.engine.claim
        quick = cgroup_pids(claim.cgroup)
        if quick:
            return [Member(p, "cgroup") for pid in quick if (p := procfs.process(pid)) is not None]
        return members(claim)

    # the run folder

    def _keep_folder(self) -> None:
        """A run folder that somebody removed is made again: without it nobody could stop the run."""
        if os.path.isdir(self._s.folder) and os.path.exists(self._s.control.path):
            self._remember()
            return
        try:
            os.makedirs(self._s.folder, mode=0o700, exist_ok=True)
            for name, (_, data) in self._files.items():
                self._restore(name, data)
            if not os.path.exists(self._s.control.path):
                self._s.control.stop_listening()
                self._s.control.listen()
            self._s.save()
            self._s.event("folder-restored", {"files": sorted(self._files)})
        except OSError:
            return  # tried again at the next look

    def _restore(self, name: str, data: bytes) -> None:
        path = os.path.join(self._s.folder, name)
        if not os.path.exists(path):
            with open(path, "wb") as file:
                file.write(data)

    def _remember(self) -> None:
        for entry in os.scandir(self._s.folder):
            if not entry.name.endswith((".json", ".txt")) or entry.name.startswith("."):
                continue
            try:
                found = entry.stat()
                if found.st_size <= SAVED_LIMIT and self._files.get(entry.name, (0.0, b""))[0] != found.st_mtime:
                    with open(entry.path, "rb") as file:
                        self._files[entry.name] = (found.st_mtime, file.read())
            except OSError:
                continue

    def remove_runtime(self) -> None:
        remove_tree(self._s.runtime)


def _stamp() -> int:
    """When something was last made or removed in /dev/shm; 0 where there is none."""
    try:
        return os.stat("/dev/shm").st_mtime_ns
    except OSError:
        return 0
