"""Half models in a cache, folders that may only be read, locks that vanish, servers that ask for no pause, clocks that are wrong."""

import asyncio
import ctypes
import errno
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from hub.models import COMMIT, LATER, REPO, digests, gguf, write_model
from hub.server import Hub

from firstlight.core.errors import FirstlightError, HostError, InputError
from firstlight.core.fetch import Fetched, FetchProgress
from firstlight.fetch.disk import disk_error
from firstlight.fetch.fetch import fetch
from firstlight.fetch.lock import claim
from firstlight.fetch.models import cached_models, find_model, remove_model
from firstlight.fetch.source import Listing, RemoteFile
from firstlight.fetch.sources.http import retry_after
from firstlight.fetch.wire import Wire, untrusted

Env = dict[str, str]
WITHOUT_CAPABILITIES = (0, 1, 2, 3)  # CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER


def get(env: Env, ref: str = REPO, **more: Any) -> Fetched:
    return asyncio.run(fetch(ref, env=env, **{"patience": 5, **more}))


def refused(env: Env, ref: str = REPO, **more: Any) -> FirstlightError:
    with pytest.raises(FirstlightError) as e:
        get(env, ref, **more)
    return e.value


def as_anybody() -> None:
    """In the child: permissions count for it, even where the tests run as root."""
    for capability in WITHOUT_CAPABILITIES:
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP; what exec of root then gets lacks it


def anybody(env: Env, *argv: str) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-c", "from firstlight.app.main import main; main()", *argv]
    return subprocess.run(
        line, env={**env, "COLUMNS": "200"}, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, preexec_fn=as_anybody
    )


def forbid_writing(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o555 if path.is_dir() else 0o444)


# half models


def test_configs_alone_are_no_model(hub: Hub, env: Env) -> None:
    """What `AutoConfig.from_pretrained` leaves in a cache is not taken for the model, offline or when the hub is away."""
    get(env, include=["*.json"])
    offline = {**env, "HF_HUB_OFFLINE": "1"}
    error = refused(offline)
    assert (error.code, "no weights" in error.message) == ("offline", True)
    assert refused({**env, "HF_ENDPOINT": "http://127.0.0.1:9"}, patience=0).code == "network-failed"
    assert set(get(offline, include=["*.json"]).files) == {"config.json", "tokenizer.json", "model.safetensors.index.json"}


def test_a_part_that_no_index_names_is_missed_offline(hub: Hub, env: Env) -> None:
    folder = hub.folder / "org" / "parts" / COMMIT
    folder.mkdir(parents=True)
    for i in (1, 2, 3):
        (folder / f"m-Q4_K_M-{i:05}-of-00003.gguf").write_bytes(gguf(1000, i))
    fetched = get(env, "org/parts:Q4_K_M")
    offline = {**env, "HF_HUB_OFFLINE": "1"}
    assert get(offline, "org/parts:Q4_K_M").path == fetched.path
    (Path(fetched.path).parent / "m-Q4_K_M-00002-of-00003.gguf").unlink()
    error = refused(offline, "org/parts:Q4_K_M")
    assert (error.code, error.evidence) == ("offline", ("m-Q4_K_M-00002-of-00003.gguf",))


def test_the_index_of_a_copy_that_is_left_out_does_not_count(hub: Hub, env: Env) -> None:
    index = hub.folder / REPO / COMMIT / "pytorch_model.bin.index.json"
    index.write_text('{"weight_map": {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}}')
    for i in (1, 2):
        index.with_name(f"pytorch_model-{i:05}-of-00002.bin").write_bytes(b"pickle")
    first = get(env)
    assert index.name in first.files
    assert get({**env, "HF_HUB_OFFLINE": "1"}).path == first.path


# folders that may only be read


def test_a_whole_model_in_somebody_elses_cache_is_used(hub: Hub, env: Env, tmp_path: Path) -> None:
    fetched = get(env)
    forbid_writing(tmp_path / "hf")
    before = hub.counts.bodies
    for more in ((), ("--verify",)):
        done = anybody(env, "fetch", REPO, *more)
        assert (done.returncode, fetched.path in done.stdout) == (0, True), done.stderr
    assert hub.counts.bodies == before
    shard = (Path(fetched.path) / "model-00003-of-00006.safetensors").resolve()
    shard.chmod(0o644)
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    rotten = anybody(env, "fetch", REPO, "--verify")
    assert rotten.returncode == 1, "what is wrong cannot be repaired there, and is not passed over"
    assert "Permission denied" in rotten.stderr


def test_a_source_that_may_not_be_read_is_named_itself(env: Env, tmp_path: Path) -> None:
    model = write_model(tmp_path / "share", shards=2, size=1000, extras=False)
    shard = model / "model-00002-of-00002.safetensors"
    shard.chmod(0o000)
    done = anybody(env, "fetch", str(model), "--to", str(tmp_path / "to"))
    assert ("permission-denied" in done.stderr, str(shard) in done.stderr) == (True, True), done.stderr
    shard.chmod(0o644)
    (model / "more").mkdir(mode=0o000)
    done = anybody(env, "fetch", str(model), "--to", str(tmp_path / "to"))
    assert (done.returncode, str(model / "more") in done.stderr) == (1, True), "half a folder is not called a model"
    (model / "more").rename(model / "lost+found")
    assert anybody(env, "fetch", str(model), "--to", str(tmp_path / "to")).returncode == 0
    (model / "lost+found").rmdir()


def test_the_umask_decides_who_may_write_in_a_shared_cache(hub: Hub, env: Env, tmp_path: Path) -> None:
    former = os.umask(0o002)
    try:
        get(env)
    finally:
        os.umask(former)
    files = [p for p in (tmp_path / "hf").rglob("*") if p.is_file() and not p.is_symlink()]
    assert {p.stat().st_mode & 0o777 for p in files} == {0o664}


@pytest.mark.parametrize("below", [".", "copy", "copy/of it"])
def test_a_folder_is_not_copied_into_itself(env: Env, tmp_path: Path, below: str) -> None:
    model = write_model(tmp_path / "share", shards=1, size=1000, extras=False)
    (tmp_path / "link").symlink_to(model)
    before = digests(model)
    with pytest.raises(InputError) as e:
        get(env, str(model), destination=str(tmp_path / "link" / below))
    assert (e.value.code, digests(model), (model / ".firstlight").exists()) == ("target-inside-source", before, False)


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "quota"), (errno.EFBIG, "ulimit")])
def test_what_is_full_is_said(tmp_path: Path, number: int, words: str) -> None:
    error = disk_error(OSError(number, os.strerror(number)), tmp_path)
    assert (error.code, words in error.message) == ("disk-full", True)
    assert any("available" in line for line in error.evidence) is (number == errno.ENOSPC), "a quota leaves the disk's own room as it is"


# locks and removal


def test_a_fetch_that_waited_for_a_removed_model_begins_anew(hub: Hub, env: Env) -> None:
    get(env)
    model = find_model(cached_models(env), REPO)
    lock = claim(Path(model.path) / ".firstlight")
    assert lock is not None
    seen: list[FetchProgress] = []
    waiting = threading.Thread(target=lambda: asyncio.run(fetch(REPO, env=env, patience=5, on_progress=seen.append)))
    waiting.start()
    while not any(p.phase == "waiting" for p in list(seen)):
        time.sleep(0.01)
    Path(model.path).rename(f"{model.path}.removed")
    os.close(lock)
    waiting.join(30)
    assert digests(Path(model.path) / "snapshots" / COMMIT).keys() == get(env).files.keys()


def test_what_somebody_works_with_is_not_removed(hub: Hub, env: Env) -> None:
    get(env)
    model = find_model(cached_models(env), REPO)
    busy = claim(Path(model.path) / ".firstlight")
    with pytest.raises(HostError, match="being fetched"):
        remove_model(model)
    assert busy is not None
    os.close(busy)
    with next(Path(model.path).rglob("model-00002*")).open("rb") as shard:
        reader = subprocess.Popen(["sleep", "60"], stdin=shard)
    try:
        with pytest.raises(HostError, match="in use") as e:
            remove_model(model)
    finally:
        reader.kill()
        reader.wait()
    assert f"pid {reader.pid}" in e.value.evidence
    assert remove_model(model) > 0
    assert cached_models(env) == []


def test_what_a_killed_removal_leaves_is_listed_and_removed(hub: Hub, env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    get(env)
    with monkeypatch.context() as patch:
        patch.setattr("firstlight.fetch.models.shutil.rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            remove_model(find_model(cached_models(env), REPO))
    assert [m.name for m in cached_models(env)] == [f"{REPO}.removed"], "half a model is not under the model's name"
    remove_model(find_model(cached_models(env), f"{REPO}.removed"))
    assert cached_models(env) == []


def test_a_branch_keeps_its_revision_until_the_next_is_whole(hub: Hub, env: Env, tmp_path: Path) -> None:
    """A name that cannot be written (a full disk, a kill) is not left empty."""
    get(env)
    write_model(hub.folder / REPO / LATER, shards=6, size=1000, seed=2)
    ref = tmp_path / "hf/hub/models--org--tiny/refs/main"
    (tmp_path / "hf/hub/models--org--tiny/.firstlight/ref.new").mkdir()
    assert refused(env).code == "disk-failed"
    assert ref.read_text() == COMMIT
    (tmp_path / "hf/hub/models--org--tiny/.firstlight/ref.new").rmdir()
    get(env)
    assert ref.read_text() == LATER


# servers and clocks


def test_a_server_that_asks_for_no_pause_is_not_hammered(hub: Hub, env: Env) -> None:
    hub.faults.too_many_every, hub.faults.retry_after = 1, "0"
    assert refused(env, patience=3).code == "network-failed"
    assert hub.counts.bodies < 60


@pytest.mark.parametrize("skew", [-86_400, 0, 86_400])
def test_a_wrong_clock_here_does_not_change_how_long_we_wait(skew: int) -> None:
    headers = Message()
    headers["Date"] = "Thu, 01 Jan 1970 00:01:40 GMT"
    headers["Retry-After"] = "Thu, 01 Jan 1970 00:01:47 GMT"
    assert retry_after(headers, 100.0 + skew) == 7.0


def test_a_certificate_of_another_time_points_at_the_clock() -> None:
    assert "clock" in (untrusted("host", "certificate is not yet valid").hint or "")
    assert "clock" not in (untrusted("host", "self-signed certificate").hint or "")


class Shifted:
    """A source whose server answers from the block's begin on, whatever is asked for in the middle of one; no digests."""

    name = "shifted"

    def __init__(self) -> None:
        self.data, self.asked = gguf(600_000, 3), list[int]()

    def accepts(self, ref: str) -> int:
        return 99 if ref.startswith("shifted:") else 0

    def list(self, ref: str, wire: Wire, env: Mapping[str, str]) -> Listing:
        return Listing(
            ref=ref, source=self.name, files=[RemoteFile(name="m.gguf", locator="x", size=len(self.data))], name="m", revision="1"
        )

    def cache(self, listing: Listing, env: Mapping[str, str]) -> Path | None:
        return None

    def open(self, file: RemoteFile, start: int, end: int | None, wire: Wire, env: Mapping[str, str]) -> "ShiftedBody":
        self.asked.append(start)
        shift = 1000 if start and len(self.asked) < 4 else 0
        return ShiftedBody(self.data, start - shift, 250_000 if len(self.asked) < 2 else len(self.data))


class ShiftedBody:
    ranged, total, etag = True, None, None

    def __init__(self, data: bytes, start: int, stop: int) -> None:
        self.start, self.left = start, memoryview(data)[start:stop]

    def readinto(self, view: memoryview) -> int:
        n = min(len(view), len(self.left), 100_000)
        view[:n], self.left = self.left[:n], self.left[n:]
        return n

    def close(self) -> None: ...
    def abort(self) -> None: ...


def test_bytes_of_another_range_are_never_written(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Shifted()
    monkeypatch.setattr("firstlight.fetch.source.load_sources", lambda: (source,))
    fetched = get(env, "shifted:m")
    assert hashlib.sha256(Path(fetched.path).read_bytes()).digest() == hashlib.sha256(source.data).digest()
    assert source.asked[:3] == [0, 250_000, 250_000]


# the command line


@pytest.mark.parametrize(("option", "value"), [("--limit-rate", "0"), ("--limit-rate", "0.001"), ("--to", "")])
def test_values_that_mean_nothing_are_refused(hub: Hub, env: Env, option: str, value: str) -> None:
    done = anybody(env, "fetch", REPO, option, value)
    assert (done.returncode, hub.counts.bodies, option in done.stderr) == (2, 0, True)


def test_a_folder_that_is_gone_is_said(hub: Hub, env: Env, tmp_path: Path) -> None:
    line = 'mkdir "$1"; cd "$1"; rmdir "$1"; exec "$2" -c "from firstlight.app.main import main; main()" fetch org/tiny --to x'
    done = subprocess.run(
        ["sh", "-c", line, "sh", str(tmp_path / "d"), sys.executable], env=env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, "folder-removed" in done.stderr) == (2, True), done.stderr
