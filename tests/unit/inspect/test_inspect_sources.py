"""Where files come from: references, the hub's cache, another host, content by sha256."""

import hashlib
import sys

import pytest
from inspect_made import can_be_denied, codes, look, write_tiny

from firstlight.core.errors import HostError, InputError
from firstlight.inspect.checkpoint import inspect
from firstlight.inspect.hub import HubSource
from firstlight.inspect.sources import FolderSource, open_source, split_names
from firstlight.inspect.verify import verify_content
from firstlight.probe.hosts import open_host

COMMIT = "f" * 40


class Far:
    """The local host as if it were another one: everything goes through the port."""

    is_local = False
    name = "ssh://far"

    def __init__(self, python: bool = True) -> None:
        self.calls: list[str] = []
        self._near = open_host("local")
        self._python = python

    def run(self, argv, **options):
        self.calls.append("run")
        if not self._python:
            raise HostError("command-not-found", "no python3")
        return self._near.run([sys.executable, *argv[1:]], **options)

    def __getattr__(self, name):
        self.calls.append(name)
        return getattr(self._near, name)


@pytest.mark.parametrize("python", [True, False])
def test_another_host_reads_the_same(tmp_path, python):
    folder = write_tiny(tmp_path / "m x", shards=3)
    host = Far(python)
    found = inspect(open_source(str(folder), host))
    assert (found.tensor_groups, found.findings) == (look(folder).tensor_groups, [])
    if python:
        assert host.calls.count("run") <= 6  # a list, the small files, the headers, the index: not one a file
        assert "read" not in host.calls[2:] or host.calls.count("read") <= 2


def _cached(tmp_path, weights=True):
    base = tmp_path / "hub/models--org--name"
    snapshot = write_tiny(base / "snapshots" / COMMIT)
    if not weights:
        (snapshot / "model.safetensors").unlink()
    (base / "refs").mkdir()
    (base / "refs/main").write_text(COMMIT)
    return {"HF_HOME": str(tmp_path), "HOME": str(tmp_path)}


def test_cached_snapshot_by_name_and_by_commit(tmp_path):
    env = _cached(tmp_path)
    for ref in ("org/name", "hf://org/name", f"org/name@{COMMIT}", "org/name@main"):
        source = open_source(ref, open_host("local"), env=env)
        assert isinstance(source, FolderSource)
        found = inspect(source)
        assert (found.revision, found.name, found.ref) == (COMMIT, "name", ref)


def test_cache_without_weights_asks_the_hub_unless_offline(tmp_path):
    env = _cached(tmp_path, weights=False)
    assert isinstance(open_source("org/name", open_host("local"), env=env), HubSource)
    assert inspect(open_source("org/name", open_host("local"), env=env | {"HF_HUB_OFFLINE": "1"})).format == "config-only"


def test_cache_with_some_of_the_shards_asks_the_hub(tmp_path):
    env = _cached(tmp_path)
    snapshot = tmp_path / "hub/models--org--name/snapshots" / COMMIT
    (snapshot / "model.safetensors").rename(snapshot / "model-00001-of-00002.safetensors")
    assert isinstance(open_source("org/name", open_host("local"), env=env), HubSource)
    (snapshot / "model-00002-of-00002.safetensors").write_bytes(b"")
    assert isinstance(open_source("org/name", open_host("local"), env=env), FolderSource)


def test_offline_and_not_cached(tmp_path):
    with pytest.raises(InputError) as error:
        open_source("org/other", open_host("local"), env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)})
    assert error.value.code == "model-not-cached"


def test_a_path_wins_over_the_hub(tmp_path, monkeypatch):
    write_tiny(tmp_path / "org/name")
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_source("org/name", open_host("local")), FolderSource)


def test_parts_of_a_split_file():
    assert split_names("a-00002-of-00003.gguf") == {f"a-0000{i}-of-00003.gguf" for i in (1, 2, 3)}
    assert split_names("a.gguf") == {"a.gguf"}


def test_a_shard_named_alone_is_not_a_checkpoint(tmp_path):
    write_tiny(tmp_path)
    with pytest.raises(InputError) as error:
        look(tmp_path / "model.safetensors")
    assert error.value.code == "not-a-checkpoint"
    assert str(tmp_path) in error.value.hint


@pytest.mark.skipif(not can_be_denied(), reason="root reads everything")
def test_folder_that_may_not_be_read(tmp_path):
    write_tiny(tmp_path / "m").chmod(0)
    with pytest.raises(InputError) as error:
        look(tmp_path / "m")
    assert error.value.code == "file-unreadable"


def _sum(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _verify(folder, **options):
    return [f.code for f in verify_content(open_source(str(folder), open_host("local")), **options)]


def test_content_against_a_list_of_sums(tmp_path):
    folder = write_tiny(tmp_path)
    (folder / "SHA256SUMS").write_text(
        f"{_sum(folder / 'model.safetensors')}  ./model.safetensors\n{_sum(folder / 'config.json')} *config.json\n"
    )
    seen = []
    assert _verify(folder, on_progress=lambda done, total: seen.append((done, total))) == ["content-verified"]
    assert seen[-1][0] == seen[-1][1] == (folder / "model.safetensors").stat().st_size + (folder / "config.json").stat().st_size
    raw = bytearray((folder / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (folder / "model.safetensors").write_bytes(raw)
    assert _verify(folder) == ["content-mismatch", "content-verified"]


def test_content_against_the_hubs_download_metadata_and_our_manifest(tmp_path):
    folder = write_tiny(tmp_path)
    metadata = folder / ".cache/huggingface/download/model.safetensors.metadata"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"{COMMIT}\n{_sum(folder / 'model.safetensors')}\n0\n")
    assert _verify(folder) == ["content-verified"]
    (folder / ".firstlight").mkdir()
    (folder / ".firstlight/manifest.json").write_text('{"files": [{"name": "model.safetensors", "sha256": "' + "0" * 64 + '"}]}')
    assert "content-mismatch" in _verify(folder)


def test_content_against_the_caches_names(tmp_path):
    folder = write_tiny(tmp_path / "snapshot")
    blob = tmp_path / _sum(folder / "model.safetensors")
    (folder / "model.safetensors").rename(blob)
    (folder / "model.safetensors").symlink_to(blob)
    assert _verify(folder) == ["content-verified"]


def test_content_that_nothing_is_known_of(tmp_path):
    assert _verify(write_tiny(tmp_path)) == ["content-unverified"]


def test_files_that_a_list_names_and_are_gone(tmp_path):
    folder = write_tiny(tmp_path)
    assert "file-missing" in _verify(folder, expected={"gone.safetensors": "0" * 64})
    assert codes(look(folder)) == []
