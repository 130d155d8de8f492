"""The end of a fetch: the manifest, what an earlier revision left, the path that the user gets."""

import shlex
import time
from pathlib import Path

from firstlight.core.fetch import Manifest, ManifestFile
from firstlight.core.findings import Finding, Severity
from firstlight.core.units import format_bytes
from firstlight.fetch.prepare import Work
from firstlight.fetch.source import Listing, RemoteFile
from firstlight.fetch.target import PlainTarget

WEIGHTS = (".safetensors", ".gguf")


def manifest_of(listing: Listing, entries: list[ManifestFile]) -> Manifest:
    return Manifest(
        ref=listing.ref,
        source=listing.source,
        name=listing.name,
        revision=listing.revision,
        time=time.time(),
        license=listing.license,
        files=sorted(entries, key=lambda f: f.name),
    )


def set_aside(work: Work) -> list[Finding]:
    """Files of an earlier revision that this one does not have: an engine would read them, too. Raises OSError."""
    if not isinstance(work.target, PlainTarget) or work.listing.archive or not (earlier := work.earlier()):
        return []
    folder = work.target.set_aside([f.name for f in earlier], work.manifest.revision if work.manifest else None)
    size = format_bytes(sum(f.size for f in earlier))
    message = f"{len(earlier)} files ({size}) of an earlier revision were set aside: this one does not have them"
    evidence, hint = [f.name for f in earlier[:4]], f"rm -r {shlex.quote(str(folder))}, when they are of no more use"
    return [Finding(code="earlier-revision", severity=Severity.WARNING, message=message, evidence=evidence, hint=hint)]


def rotten(file: RemoteFile) -> Finding:
    message = f"{file.name} was not what it should be, and was fetched again"
    return Finding(
        code="file-repaired",
        severity=Severity.WARNING,
        message=message,
        note="a disk that rots once may rot again: look at its SMART values",
    )


def result_path(work: Work) -> Path:
    """The first part of a GGUF where that is all the model's weights, else the folder."""
    weights = [f.name for f in work.kept if f.name.endswith((*WEIGHTS, ".bin", ".pt"))]
    models = [n for n in weights if not n.rpartition("/")[2].lower().startswith("mmproj")]
    if models and all(n.endswith(".gguf") for n in models):
        return work.target.result / min(models)
    return work.target.result
