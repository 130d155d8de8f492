"""What the Hugging Face cache holds of a model, without a network."""

import json
from collections.abc import Mapping
from pathlib import Path

from firstlight.core.errors import HostError
from firstlight.core.hub import hub_cache, repo_folder
from firstlight.fetch.manifest import read_manifest
from firstlight.fetch.source import Listing, RemoteFile
from firstlight.fetch.sources.hub import split_ref

HINT = "unset HF_HUB_OFFLINE, or fetch it where there is a network"


def offline_listing(ref: str, env: Mapping[str, str]) -> Listing:
    """The cached snapshot as a listing. Raises HostError: offline (nothing is cached, or not all that the index names)."""
    repo, revision, variant = split_ref(ref)
    folder = Path(hub_cache(env)).expanduser() / repo_folder(repo)
    commit = _commit(folder, revision or "main")
    snapshot = folder / "snapshots" / (commit or "-")
    if commit is None or not snapshot.is_dir():
        raise HostError("offline", f"{repo} is not in the cache, and the hub cannot be asked", evidence=(str(folder),), hint=HINT)
    files = [_file(p, snapshot) for p in sorted(snapshot.rglob("*")) if p.is_file()]
    lost = sorted(_indexed(snapshot) - {f.name for f in files})
    if lost:
        raise HostError("offline", f"the cached {repo} lacks {len(lost)} of its shards", evidence=tuple(lost[:8]), hint=HINT)
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


def _indexed(snapshot: Path) -> set[str]:
    """Shards that the indexes name."""
    names: set[str] = set()
    for index in snapshot.glob("*.index.json"):
        names |= shards_of(index.read_bytes())
    return names


def shards_of(index: bytes) -> set[str]:
    """The files that an index of shards names; none when it is not one."""
    try:
        return {str(v) for v in json.loads(index)["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return set()
