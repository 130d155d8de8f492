"""One fetch from start to end, in threads: what is missing is moved, checked, and sealed with a manifest."""

import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from firstlight.core.errors import Exit, FirstlightError, HostError
from firstlight.core.fetch import Fetched, FetchProgress, FileProgress, ManifestFile
from firstlight.core.findings import Finding, Severity, blockers
from firstlight.fetch.archive import present, take_out
from firstlight.fetch.check import is_right, sha256_of
from firstlight.fetch.disk import disk_error, nearest
from firstlight.fetch.ending import WEIGHTS, manifest_of, result_path, rotten, set_aside
from firstlight.fetch.job import FileJob
from firstlight.fetch.lock import publish_progress, shared_work
from firstlight.fetch.manifest import WORK, entry, note_begun, note_landed, write_manifest
from firstlight.fetch.meter import Meter, eta_seconds, place_key, remember_rate
from firstlight.fetch.offline import shards_of
from firstlight.fetch.options import Options
from firstlight.fetch.prepare import Work, bytes_in_part, cache_root, prepare
from firstlight.fetch.room import room_findings
from firstlight.fetch.source import Changed, RemoteFile
from firstlight.fetch.space import read_space
from firstlight.fetch.target import PlainTarget, is_here
from firstlight.fetch.transfer import Landed, Opener, Transfer
from firstlight.fetch.wire import Wire

ROUNDS = 3


class Session:
    """`run` blocks (call it in a thread); `progress` and `cancel` may be called from any other."""

    def __init__(self, ref: str, options: Options, env: Mapping[str, str]) -> None:
        self.ref, self.options, self.env = ref, options, env
        self.stop = threading.Event()
        self._wire = Wire(env, timeout=options.settings.silence)
        self._work: Work | None = None
        self._transfer: Transfer | None = None
        self._phase, self._note = "listing", ""
        self._elsewhere: FetchProgress | None = None
        self._here: list[FileProgress] = []
        self._meter = Meter()
        self._entries: dict[str, ManifestFile] = {}
        self._findings: list[Finding] = []
        self._received = 0

    def cancel(self) -> None:
        """What arrived stays for the next time."""
        self.stop.set()
        if self._transfer:
            self._transfer.cancel()

    def run(self) -> Fetched:
        """Raises FirstlightError."""
        begun = time.monotonic()
        try:
            for _ in range(ROUNDS):
                try:
                    work = prepare(self.ref, self.options, self._wire, self.env, stop=self.stop, say=self._say)
                    path = self._fetch(work)
                    self._phase = "done"
                    return self._result(work, path, time.monotonic() - begun)
                except Changed as e:
                    self._say(f"{e}; listing it anew")
                    why = str(e)
            raise HostError(
                "source-changed", "the source changes faster than it can be fetched", evidence=(why,), hint="name a revision, or try later"
            )
        except OSError as e:
            raise disk_error(e, Path(e.filename or self._cache())) from e
        finally:
            self._wire.close()

    def _fetch(self, work: Work) -> Path:
        """Returns the folder or file to use. Raises Changed, FirstlightError."""
        if work.listing.local and self.options.destination is None:
            return Path(work.listing.local)
        if (place := self._in_place(work)) is not None:
            return place
        self._work = work
        with shared_work(work.target.base / WORK, self._waiting, self.stop):
            self._elsewhere = None
            self._check_stop()
            if work.listing.archive and (done := present(work, verify=self.options.verify)):
                return done
            self._move(work)
            if work.listing.archive:
                self._phase = "verifying"
                return take_out(work, self._seal)
            self._unchanged(work)
            names = {f.name for f in work.kept}
            self._seal(work, list({n: f for n, f in (work.known | self._entries).items() if n in names}.values()))
        return result_path(work)

    def _in_place(self, work: Work) -> Path | None:
        """A model that is complete where we may not write: a cache of somebody else, a read-only mount. Nothing is locked or noted."""
        if os.access(nearest(work.target.base / WORK), os.W_OK):
            return None
        if work.listing.archive:
            return present(work, verify=self.options.verify)
        return None if self._missing(work) else result_path(work)

    def _move(self, work: Work) -> None:
        missing = self._missing(work)
        self._check_space(work, work.once(missing))
        absent = {f.name for f in missing}
        here = [f for f in work.kept if f.name not in absent]
        self._here = [_progress(f, "done") for f in here]
        known = work.known
        for file in here:
            work.target.show(file)
            if file.name not in known:
                self._inspect(work, file, work.target.path(file))
        if not missing:
            return
        if isinstance(work.target, PlainTarget):
            work.target.waits = work.replaces_another()
            note_begun(work.target.base, work.begun)
        jobs = [FileJob(f, work.target.part(f)) for f in work.once(missing)]
        begun = time.monotonic()
        self._transfer = Transfer(jobs, self._opener(work), self._landing(work, missing), self.options.settings)
        if self.stop.is_set():
            self._transfer.cancel()
        self._phase = "fetching"
        self._say("")
        try:
            self._transfer.run()
        finally:
            self._received += self._transfer.share.received
        self._check_stop()
        if self.options.settings.limit_rate is None and not self._transfer.share.was_slowed:
            key = place_key(work.source.name, missing[-1].locator)
            remember_rate(self._cache(), key, self._transfer.share.received, time.monotonic() - begun)

    def _missing(self, work: Work) -> list[RemoteFile]:
        """What must be moved. First hashed: what lies here unknown, and, when that is asked for, everything that is here."""
        missing = work.missing()
        absent = {f.name for f in missing}
        known = work.known
        unknown = [f for f in missing if (f.sha256 or f.git_sha1 or work.is_known(f, known)) and is_here(work.target, f)]
        asked = [f for f in work.kept if f.name not in absent] if self.options.verify else []
        right = self._right(work, [*asked, *unknown])
        self._findings += [rotten(f) for f in asked if f.name not in right]
        absent |= {f.name for f in asked}
        wanted = absent - right
        return [f for f in work.kept if f.name in wanted]

    def _right(self, work: Work, files: list[RemoteFile]) -> set[str]:
        """Names of those whose bytes are right; they are noted as verified."""
        if not files:
            return set()
        self._phase = "verifying"
        with ThreadPoolExecutor(4) as pool:
            digests = list(pool.map(lambda f: sha256_of(work.target.path(f), self.stop), files))
        self._check_stop()
        known = work.known
        right = [(f, d) for f, d in zip(files, digests, strict=True) if is_right(f, work.target.path(f), d, known.get(f.name))]
        self._entries |= {f.name: entry(f.name, work.target.path(f), d, f.etag) for f, d in right}
        return {f.name for f, _ in right}

    def _check_space(self, work: Work, missing: list[RemoteFile]) -> None:
        needed = sum((f.size or 0) - bytes_in_part(work.target, f) for f in missing)
        needed += (work.listing.archive.size or 0) if work.listing.archive else 0
        found = room_findings(read_space(work.target.base), needed, self.env, self._cache(), work.target.base)
        self._findings += [f for f in found if f.severity is not Severity.BLOCKER]
        for finding in blockers(found):
            raise HostError(
                finding.code, finding.message, evidence=tuple(finding.evidence), hint=finding.hint, exit_code=Exit.PREFLIGHT_BLOCKED
            )

    def _opener(self, work: Work) -> Opener:
        return lambda file, start, end: work.source.open(file, start, end, self._wire, self.env)

    def _landing(self, work: Work, missing: list[RemoteFile]) -> Landed:
        """Files of one content are one file in the cache: it lands once, under all of their names."""
        twins: dict[Path, list[RemoteFile]] = {}
        for file in missing:
            twins.setdefault(work.target.landing(file), []).append(file)

        def landed(job: FileJob, sha256: str) -> None:
            target = work.target.landing(job.file)
            job.finish(target)
            for file in twins[target]:
                work.target.show(file)
                self._inspect(work, file, target)
                made = self._entries[file.name] = entry(file.name, target, sha256, file.etag)
                note_landed(work.target.base, made)

        return landed

    def _inspect(self, work: Work, file: RemoteFile, path: Path) -> None:
        """A shard whose header is wrong, or an index that names shards which the source lacks, ends the fetch at once."""
        if file.name.endswith(".index.json"):
            lost = shards_of(path.read_bytes()) - {f.name for f in work.listing.files}
            if lost:
                raise HostError(
                    "index-incomplete",
                    f"{file.name} names {len(lost)} shards that the source does not have",
                    evidence=tuple(sorted(lost)[:8]),
                )
        if self.options.validate and file.name.endswith(WEIGHTS):
            found = self.options.validate(path)
            self._findings += found
            for finding in blockers(found):
                raise HostError(finding.code, f"{file.name}: {finding.message}", evidence=tuple(finding.evidence), hint=finding.hint)

    def _unchanged(self, work: Work) -> None:
        """Sources without revisions are asked again at the end: the set must be of one time. Raises Changed."""
        if work.listing.revision is not None or not self._received:
            return
        again = prepare(self.ref, self.options, self._wire, self.env, stop=self.stop, say=self._say)
        before = {f.name: f.identity for f in work.kept}
        for name, identity in {f.name: f.identity for f in again.kept}.items():
            if before.get(name) != identity:
                raise Changed(f"{name} changed while the model was fetched")

    def _seal(self, work: Work, entries: list[ManifestFile]) -> None:
        lost = [f.name for f in work.kept if not work.listing.archive and not is_here(work.target, f)]
        if lost:
            raise HostError(
                "incomplete", "files are missing after the fetch", evidence=tuple(lost[:8]), hint="something removes them: run it again"
            )
        try:
            self._findings += set_aside(work)
            work.target.settle()
            write_manifest(work.target.base, manifest_of(work.listing, entries), work.target.manifest_name)
            work.target.seal()
        except OSError as e:
            raise disk_error(e, work.target.base) from e

    def _result(self, work: Work, path: Path, seconds: float) -> Fetched:
        listing = work.listing
        sizes = {f.name: f.size or 0 for f in work.kept} if not listing.archive else {path.name: path.stat().st_size}
        manifest = work.target.base / WORK / work.target.manifest_name
        return Fetched(
            ref=listing.ref,
            source=listing.source,
            path=str(path),
            revision=listing.revision,
            name=listing.name,
            bytes_total=sum(sizes.values()),
            bytes_fetched=self._received,
            seconds=seconds,
            files=sizes,
            left_out=work.left_out,
            license=listing.license,
            manifest=str(manifest) if manifest.exists() else None,
            findings=[*work.findings, *self._findings],
        )

    # what others see

    def progress(self) -> FetchProgress:
        """One snapshot; cheap enough for several a second."""
        if self._elsewhere is not None:
            return self._elsewhere
        moving = self._transfer.progress() if self._transfer else []
        files = [*self._here, *moving]
        share = self._transfer.share if self._transfer else None
        total = None if any(f.bytes_total is None for f in files) else sum(f.bytes_total or 0 for f in files)
        done = sum(f.bytes_done for f in files)
        rate = self._meter.rate(share.received) if share and self._phase == "fetching" else None
        made = FetchProgress(
            phase=self._phase,
            bytes_done=done,
            bytes_total=total,
            bytes_per_second=rate,
            eta_seconds=eta_seconds(None if total is None else total - done, rate),
            connections=share.active if share else 0,
            files_done=sum(f.state == "done" for f in files),
            files_total=len(files),
            files=files,
            note=(share.note if share else None) or self._note or None,
        )
        if self._work and self._transfer and self._phase != "done":
            publish_progress(self._work.target.base / WORK, made)
        return made

    def _waiting(self, theirs: FetchProgress | None) -> None:
        base = theirs or FetchProgress(phase="waiting")
        self._elsewhere = FetchProgress(
            phase="waiting",
            bytes_done=base.bytes_done,
            bytes_total=base.bytes_total,
            bytes_per_second=base.bytes_per_second,
            eta_seconds=base.eta_seconds,
            connections=base.connections,
            files_done=base.files_done,
            files_total=base.files_total,
            files=base.files,
            note="another fetch of this model is at work; its result will be used",
        )

    def _say(self, note: str) -> None:
        self._note = note

    def _check_stop(self) -> None:
        if self.stop.is_set():
            raise FirstlightError(
                "interrupted", "the fetch was interrupted", hint="the same command goes on where it stopped", exit_code=Exit.INTERRUPTED
            )

    def _cache(self) -> Path:
        return Path(self.options.cache) if self.options.cache else cache_root(self.env)


def _progress(file: RemoteFile, state: str) -> FileProgress:
    return FileProgress(name=file.name, bytes_done=file.size or 0, bytes_total=file.size, state=state)
