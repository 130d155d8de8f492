"""Overlays: the checkpoint stays as it is, the path is the content's, and damage is repaired."""

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import FirstlightError
from firstlight.core.patches import patch_json
from firstlight.core.plan import JsonPatch, OverlaySpec
from firstlight.launch.overlay import lay_overlay, list_overlays, manifest_of, remove_overlay
from firstlight.probe.local import LocalHost

REMOVE = [
    JsonPatch(file="config.json", path=["quantization_config", "kv_cache_scheme"], remove=True, because="no backend"),
    JsonPatch(file="hf_quant_config.json", path=["quantization", "kv_cache_quant_algo"], remove=True, because="no backend"),
]
SPEC = OverlaySpec(patches=REMOVE, because="no backend for it")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "Mödel with spaces"
    (folder / "sub").mkdir(parents=True)
    config = {"model_type": "x", "quantization_config": {"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8}}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}))
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "sub" / "extra.json").write_text("{}")
    (folder / ".hidden").write_text("x")
    return folder


def hashes(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


def checkpoint(path: Path) -> Checkpoint:
    return Checkpoint(ref=str(path), format="safetensors", path=str(path), name="Tiny MLA")


def test_patched_copies_beside_links(host: LocalHost, model: Path, tmp_path: Path) -> None:
    before = hashes(model)
    overlay = lay_overlay(host, checkpoint(model), SPEC, root=str(tmp_path / "overlays"))
    laid = Path(overlay.path)
    assert "kv_cache_scheme" not in json.loads((laid / "config.json").read_text())["quantization_config"]
    assert json.loads((laid / "hf_quant_config.json").read_text())["quantization"] == {"quant_algo": "FP8"}
    assert os.readlink(laid / "model.safetensors") == str(model / "model.safetensors")
    assert (laid / "sub" / "extra.json").read_text() == "{}"
    assert not (laid / ".hidden").exists()
    assert hashes(model) == before
    assert laid.name.startswith("tiny-mla-")
    changes = [c for f in manifest_of(host, overlay.path).files for c in f.changes]
    assert changes[0] == 'removed quantization_config.kv_cache_scheme (was {"num_bits": 8}): no backend'
    assert list_overlays(host, str(tmp_path / "overlays")) == [overlay]


def test_the_same_content_is_the_same_path(host: LocalHost, model: Path, tmp_path: Path) -> None:
    root = str(tmp_path / "overlays")
    first = lay_overlay(host, checkpoint(model), SPEC, root=root)
    inode = os.stat(first.path).st_ino
    reworded = OverlaySpec(patches=REMOVE, because="another reason")
    assert lay_overlay(host, checkpoint(model), reworded, root=root).path == first.path
    assert os.stat(first.path).st_ino == inode
    other = OverlaySpec(patches=[JsonPatch(file="config.json", path=["model_type"], value="y")], because="b")
    assert lay_overlay(host, checkpoint(model), other, root=root).path != first.path
    (model / "config.json").write_text(json.dumps({"model_type": "z", "quantization_config": {}}))
    assert lay_overlay(host, checkpoint(model), SPEC, root=root).path != first.path


@pytest.mark.parametrize("damage", ["edited", "missing", "dangling", "no manifest", "replaced"])
def test_a_damaged_overlay_is_built_anew(host: LocalHost, model: Path, tmp_path: Path, damage: str) -> None:
    overlay = lay_overlay(host, checkpoint(model), SPEC, root=str(tmp_path / "overlays"))
    laid = Path(overlay.path)
    if damage == "edited":
        (laid / "config.json").write_text("{}")
    elif damage == "no manifest":
        (laid / "manifest.json").unlink()
    else:
        (laid / "model.safetensors").unlink()
        if damage == "dangling":
            (laid / "model.safetensors").symlink_to("/no/where")
        elif damage == "replaced":
            (laid / "model.safetensors").write_text("something else")
    again = lay_overlay(host, checkpoint(model), SPEC, root=str(tmp_path / "overlays"))
    assert again.path == overlay.path
    assert (laid / "model.safetensors").read_bytes() == b"weights"
    assert "model_type" in (laid / "config.json").read_text()
    assert list(laid.parent.iterdir()) == [laid]


def test_nested_files_are_patched_in_place(host: LocalHost, model: Path, tmp_path: Path) -> None:
    spec = OverlaySpec(patches=[JsonPatch(file="sub/extra.json", path=["a", "b"], value=1)], because="b")
    overlay = lay_overlay(host, checkpoint(model), spec, root=str(tmp_path / "o"))
    assert json.loads(Path(overlay.path, "sub", "extra.json").read_text()) == {"a": {"b": 1}}
    assert (model / "sub" / "extra.json").read_text() == "{}"


def test_a_read_only_checkpoint_is_enough(host: LocalHost, model: Path, tmp_path: Path) -> None:
    for path in [*model.rglob("*"), model]:
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
    try:
        assert lay_overlay(host, checkpoint(model), SPEC, root=str(tmp_path / "o")).files
    finally:
        for path in [model, *model.rglob("*")]:
            path.chmod(0o700)


@pytest.mark.parametrize(
    ("patch", "text"),
    [
        (JsonPatch(file="absent.json", path=["a"], remove=True), "{}"),
        (JsonPatch(file="../config.json", path=["a"], remove=True), "{}"),
        (JsonPatch(file="config.json", path=["a"], remove=True), "not json"),
        (JsonPatch(file="config.json", path=["a", "b"], value=1), '{"a": 5}'),
    ],
)
def test_impossible_patches_leave_nothing(host: LocalHost, model: Path, tmp_path: Path, patch: JsonPatch, text: str) -> None:
    (model / "config.json").write_text(text)
    with pytest.raises(FirstlightError) as raised:
        lay_overlay(host, checkpoint(model), OverlaySpec(patches=[patch], because="b"), root=str(tmp_path / "o"))
    assert raised.value.code == "patch-impossible"
    assert not (tmp_path / "o").exists()


def test_no_space_says_so_and_leaves_nothing(model: Path, tmp_path: Path) -> None:
    class Full(LocalHost):
        def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
            from firstlight.probe.problems import host_error

            raise host_error(28, "write", path)

    with pytest.raises(FirstlightError) as raised:
        lay_overlay(Full(), checkpoint(model), SPEC, root=str(tmp_path / "o"))
    assert raised.value.code == "no-space"
    assert "XDG_CACHE_HOME" in (raised.value.hint or "")
    assert list((tmp_path / "o").iterdir()) == []


def test_only_overlays_are_removed(host: LocalHost, model: Path, tmp_path: Path) -> None:
    with pytest.raises(FirstlightError) as raised:
        remove_overlay(host, str(model))
    assert raised.value.code == "not-an-overlay"
    overlay = lay_overlay(host, checkpoint(model), SPEC, root=str(tmp_path / "o"))
    remove_overlay(host, overlay.path)
    assert not Path(overlay.path).exists()
    assert (model / "model.safetensors").exists()


def test_patching_keeps_order_and_tells_what_was_there() -> None:
    text, lines = patch_json(b'{"b": 1, "a": {"x": 2}}', [JsonPatch(file="f", path=["a", "x"], value=3, because="w")], origin="f")
    assert list(json.loads(text)) == ["b", "a"]
    assert lines == ["set a.x to 3 (was 2): w"]
    assert patch_json(b"{}", [JsonPatch(file="f", path=["a", "x"], remove=True)], origin="f")[1] == []
