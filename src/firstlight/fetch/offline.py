"""What the Hugging Face cache holds of a model, without a network."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from firstlight.core.errors import HostError
from firstlight.core.hub import hub_cache, repo_folder
from firstlight.fetch.manifest import read_manifest
from firstlight.fetch.select import PICKLES
from firstlight.fetch.source import Listing, RemoteFile
from firstlight.fetch.sources.hub import split_ref

ANY_WEIGHTS = (".safetensors", ".gguf", *PICKLES)
HINT = "unset HF_HUB_OFFLINE, or fetch it where there is a network"


def offline_listing(ref: str, env: Mapping[str, str]) -> Listing:
    """The cached snapshot as a listing. Raises HostError: offline (nothing is cached)."""
    repo, revision, variant = split_ref(ref)
    folder = Path(hub_cache(env)).expanduser() / repo_folder(repo)
    commit = _commit(folder, revision or "main")
    snapshot = folder / "snapshots" / (commit or "-")
    if commit is None or not snapshot.is_dir():
        raise HostError("offline", f"{repo} is not in the cache, and the hub cannot be asked", evidence=(str(folder),), hint=HINT)
    files = [_file(p, snapshot) for p in sorted(snapshot.rglob("*")) if p.is_file()]
    manifest = read_manifest(folder, f"{commit}.json")
    return Listing(
        ref=ref,
        source="hub",
        files=files,
        name=repo,
        revision=commit,
        asked_revision=revision or "main",
        license=manifest.license if manifest else None,
        variant=variant,
    )


def _commit(folder: Path, revision: str) -> str | None:
    if (folder / "snapshots" / revision).is_dir():
        return revision
    try:
        return (folder / "refs" / revision).read_text().strip() or None
    except OSError:
        return None


def _file(path: Path, snapshot: Path) -> RemoteFile:
    """Blobs are named by their content: 64 hex digits are a sha256, 40 a git blob id."""
    blob = path.resolve().name
    named = {64: "sha256", 40: "git_sha1"}.get(len(blob))
    digests = {named: blob} if named else {}
    return RemoteFile(name=path.relative_to(snapshot).as_posix(), locator=str(path), size=path.stat().st_size, etag=blob, **digests)


def require_whole(name: str | None, kept: Sequence[RemoteFile]) -> None:
    """A cache often holds less than the model: configs that somebody looked at, a download that was broken off.

    Raises HostError `offline`: no weights, or not all that the index or the parts' own names tell of.
    """
    names = {f.name for f in kept}
    if not any(n.endswith(ANY_WEIGHTS) for n in names):
        hint = f"{HINT}; --include takes what is there"
        raise HostError("offline", f"the cached {name} has no weights", evidence=tuple(sorted(names)[:8]), hint=hint)
    sets = [shards_of(Path(f.locator).read_bytes()) for f in kept if f.name.endswith(".index.json") and "/" not in f.name]
    sets = [s for s in sets if s & names]  # else the index of a copy that nobody fetches: pickles, consolidated
    lost = sorted(set[str]().union(*sets, *map(parts_of, names)) - names)
    if lost:
        raise HostError("offline", f"the cached {name} lacks {len(lost)} of its shards", evidence=tuple(lost[:8]), hint=HINT)


def parts_of(name: str) -> set[str]:
    """All the names that go with `model-00002-of-00003.gguf`; none for a file that is whole by itself."""
    match = re.fullmatch(r"(.*-)(\d{5})-of-(\d{5})(\.\w+)", name)
    return {f"{match[1]}{i:05}-of-{match[3]}{match[4]}" for i in range(1, int(match[3]) + 1)} if match else set()


def shards_of(index: bytes) -> set[str]:
    """The files that an index of shards names; none when it is not one."""
    try:
        return {str(v) for v in json.loads(index)["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return set()
