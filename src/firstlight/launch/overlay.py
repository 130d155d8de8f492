"""The overlay: a checkpoint as symlinks plus patched JSON, in a folder named by its content. The checkpoint itself is never touched.

The name is the content's, so the same patches of the same files give the same path: engines key their compile caches by model path.
"""

import contextlib
import hashlib
import posixpath
import secrets
import time

import msgspec

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import FirstlightError, HostError, InputError
from firstlight.core.ids import digest, slug
from firstlight.core.patches import by_file, patch_json
from firstlight.core.plan import JsonPatch, OverlaySpec
from firstlight.core.ports import Host
from firstlight.core.run import Overlay, OverlayFile
from firstlight.core.schema import decode, encode

MANIFEST = "manifest.json"


def lay_overlay(host: Host, checkpoint: Checkpoint, spec: OverlaySpec, *, root: str) -> Overlay:
    """The overlay of `checkpoint` under `root` on `host`: found intact, or built anew and put in place in one rename.

    Raises InputError `no-checkpoint-folder`, `patch-impossible`; HostError `no-space`, `read-only-filesystem`, … with nothing left behind.
    """
    source = checkpoint.path
    if source is None or (info := host.stat(source)) is None or info.kind != "directory":
        raise InputError("no-checkpoint-folder", "only a checkpoint in a folder can be overlaid", evidence=(f"path: {source}",))
    patched = _patched_files(host, source, spec.patches)
    files = _plan_files(host, source, patched, spec.patches)
    overlay = _describe(checkpoint, source, spec, files, root)
    if _intact(host, overlay):
        return overlay
    _build(host, overlay, patched)
    return overlay


def remove_overlay(host: Host, path: str) -> None:
    """Removes an overlay's own folder and links. Raises FirstlightError `not-an-overlay` for any other folder."""
    if host.stat(path) is None:
        return
    if host.stat(posixpath.join(path, MANIFEST)) is None:
        raise FirstlightError("not-an-overlay", "the folder is not an overlay", evidence=(f"{path} has no {MANIFEST}",))
    host.remove(path)


def _patched_files(host: Host, source: str, patches: list[JsonPatch]) -> dict[str, tuple[bytes, list[str]]]:
    """File name -> (new text, lines of what changed)."""
    found = {}
    for name, wanted in by_file(patches).items():
        if host.stat(posixpath.join(source, name)) is None:
            raise InputError("patch-impossible", f"the checkpoint has no {name}", evidence=(f"folder: {source}",))
        found[name] = patch_json(host.read(posixpath.join(source, name)), wanted, origin=name)
    return found


def _plan_files(host: Host, source: str, patched: dict[str, tuple[bytes, list[str]]], patches: list[JsonPatch]) -> list[OverlayFile]:
    """Links for every entry, copies for the patched files; a folder that holds a patched file is made, its other entries linked."""
    folders = {posixpath.dirname(name) for name in patched} | {""}
    folders |= {parent for name in patched for parent in _parents(name)}
    files = []
    for folder in sorted(folders):
        for info in host.list(posixpath.join(source, folder) if folder else source):
            name = posixpath.join(folder, posixpath.basename(info.path))
            if name in folders or posixpath.basename(name).startswith(".") or name == MANIFEST:
                continue
            files.append(_file(source, name, patched))
    return sorted(files, key=lambda f: f.name)


def _parents(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


def _file(source: str, name: str, patched: dict[str, tuple[bytes, list[str]]]) -> OverlayFile:
    if name not in patched:
        return OverlayFile(name=name, kind="link", target=posixpath.join(source, name))
    text, changes = patched[name]
    return OverlayFile(name=name, kind="patched", sha256=hashlib.sha256(text).hexdigest(), changes=changes)


def _describe(checkpoint: Checkpoint, source: str, spec: OverlaySpec, files: list[OverlayFile], root: str) -> Overlay:
    content = [[f.name, f.kind, f.target, f.sha256] for f in files]
    address = digest([source, content], length=16)
    name = slug(checkpoint.name or posixpath.basename(source.rstrip("/")))[:60]
    return Overlay(path=posixpath.join(root, f"{name}-{address}"), checkpoint=source, digest=address, because=spec.because, files=files)


def _intact(host: Host, overlay: Overlay) -> bool:
    """Whether the folder holds exactly what its manifest says: patched bytes by hash, links by what they lead to."""
    try:
        found = decode(host.read(posixpath.join(overlay.path, MANIFEST)), Overlay, origin=MANIFEST)
        return found.files == overlay.files and all(_file_intact(host, overlay, f) for f in overlay.files)
    except FirstlightError:
        return False


def _file_intact(host: Host, overlay: Overlay, file: OverlayFile) -> bool:
    path = posixpath.join(overlay.path, file.name)
    if file.kind == "patched":
        return hashlib.sha256(host.read(path)).hexdigest() == file.sha256
    here, there = host.stat(path), host.stat(file.target or "")
    return here is not None and there is not None and (here.kind, here.size) == (there.kind, there.size)


def _build(host: Host, overlay: Overlay, patched: dict[str, tuple[bytes, list[str]]]) -> None:
    """In a folder beside the final one, so that a kill at any point leaves no half overlay under the final name."""
    root = posixpath.dirname(overlay.path)
    host.mkdir(root)
    building = f"{overlay.path}.building-{secrets.token_hex(4)}"
    try:
        _sweep(host, root)
        host.mkdir(building)
        for file in overlay.files:
            path = posixpath.join(building, file.name)
            if file.kind == "patched":
                host.write(path, patched[file.name][0])
            else:
                host.symlink(file.target or "", path)
        host.write(posixpath.join(building, MANIFEST), encode(overlay))
        host.remove(overlay.path)
        host.rename(building, overlay.path)
    except HostError as e:
        _give_up(host, building, overlay, e)


def _sweep(host: Host, root: str) -> None:
    """Half-built folders of killed starts; younger ones may belong to a start that is at work."""
    for info in host.list(root):
        if ".building-" in posixpath.basename(info.path) and info.modified is not None and info.modified < time.time() - 3600:
            host.remove(info.path)


def _give_up(host: Host, building: str, overlay: Overlay, error: HostError) -> None:
    """Another start may have put the same overlay in place meanwhile: then all is well."""
    if _intact(host, overlay):
        return
    with contextlib.suppress(HostError):  # the first error is the one to tell
        host.remove(building)
    raise HostError(
        error.code,
        f"the overlay could not be written: {error.message}",
        evidence=(*error.evidence, f"overlay: {overlay.path}"),
        hint=error.hint or "choose another place with XDG_CACHE_HOME",
    ) from None


def manifest_of(host: Host, path: str) -> Overlay:
    """The manifest of a laid overlay. Raises InputError for a folder without a readable one."""
    try:
        return decode(host.read(posixpath.join(path, MANIFEST)), Overlay, origin=posixpath.join(path, MANIFEST))
    except HostError as e:
        raise InputError("not-an-overlay", f"{path} has no readable manifest", evidence=(e.message,)) from None


def list_overlays(host: Host, root: str) -> list[Overlay]:
    """Every intact or damaged overlay under `root` whose manifest can be read."""
    if host.stat(root) is None:
        return []
    found = []
    for info in host.list(root):
        try:
            found.append(msgspec.structs.replace(manifest_of(host, info.path), path=info.path))
        except FirstlightError:
            continue
    return found
