"""Sources that lie, disks that refuse, folders that change under a fetch: an error that says so, nothing outside, nothing lost."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hub.models import COMMIT, LATER, REPO, digests, write_model
from hub.server import Handler, Hub

from firstlight.core.errors import FirstlightError, HostError
from firstlight.core.fetch import Fetched, FetchProgress
from firstlight.fetch.fetch import estimate, fetch
from firstlight.fetch.source import Listing, RemoteFile, checked, safe_name

Env = dict[str, str]


def get(env: Env, ref: str = REPO, **more: Any) -> Fetched:
    return asyncio.run(fetch(ref, env=env, patience=5, **more))


def lie(monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], None]) -> None:
    """The hub's description of the model, changed on its way out."""
    real = Handler._json

    def told(self: Handler, value: Any) -> None:
        if isinstance(value, dict) and "siblings" in value:
            change(value)
        real(self, value)

    monkeypatch.setattr(Handler, "_json", told)


# what a hub may say


@pytest.mark.parametrize(
    "name",
    ["../up.json", "/etc/x.json", "a/../../b.json", "a//b.json", ".firstlight/manifest.json", "a\\b.json", "a\0b.json", "\x1b[2Jx.json",
     "a\nb.json", "\x9b1mx.json", "\ud800.json", "", ".", "sub/.."],
)  # fmt: skip
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(FirstlightError) as e:
        safe_name(name)
    assert e.value.code == "unsafe-file-name"
    assert all(" " <= c < "\x7f" for c in e.value.evidence[0])


def sibling(value: dict[str, Any], **change: Any) -> None:
    next(s for s in value["siblings"] if s["rfilename"] == "config.json").update(change)


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        (lambda v: sibling(v, rfilename="../../../../evil.json"), {"unsafe-file-name"}),
        (lambda v: sibling(v, size=-1), {"listing-senseless"}),
        (lambda v: sibling(v, size="many"), {"listing-senseless", "hub-answer"}),
        (lambda v: sibling(v, size=10**30), {"no-space"}),
        (lambda v: v.update(sha="../../../../../evil"), {"listing-senseless"}),
        (lambda v: v.update(sha=None), {"hub-answer"}),
        (lambda v: v.update(sha=".firstlight"), {"listing-senseless"}),
        (lambda v: v.update(siblings=[{"size": 3}]), {"hub-answer"}),
        (lambda v: v.update(siblings=[{"rfilename": "a.json", "size": 3, "lfs": {"size": 3}}]), {"hub-answer"}),
        (lambda v: v.update(siblings="none"), {"hub-answer"}),
        (lambda v: v.update(siblings=[]), {"nothing-matches"}),
        (lambda v: v["siblings"].append(v["siblings"][-1] | {"size": 7, "blobId": "f" * 40, "lfs": None}), {"listing-senseless"}),
        (lambda v: v["siblings"].extend(v["siblings"][:]), set()),
        (lambda v: v.update(cardData={"license": {"name": "x"}}), set()),
        (lambda v: v.update(cardData=None, gated="odd"), set()),
        (lambda v: sibling(v, blobId="../../blob"), {"wrong-bytes", "hub-answer"}),
    ],
)  # fmt: skip
def test_a_hub_that_lies_about_its_files(
    hub: Hub, env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], None], codes: set[str]
) -> None:
    lie(monkeypatch, change)
    if codes:
        with pytest.raises(FirstlightError) as e:
            get(env)
        assert e.value.code in codes
    else:
        get(env)
    assert {p.name for p in tmp_path.iterdir()} <= {"home", "hf", "hub"}
    assert {p.name for p in (tmp_path / "hf").glob("hub/*")} <= {"models--org--tiny"}
    assert {p.name for p in (tmp_path / "hf").glob("hub/*/*")} <= {".firstlight", "blobs", "refs", "snapshots"}


@pytest.mark.parametrize("size", [200_000, 400_000])
def test_a_hub_that_lies_about_a_size(hub: Hub, env: Env, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    def change(value: dict[str, Any]) -> None:
        shard = next(s for s in value["siblings"] if s["rfilename"].startswith("model-00002"))
        shard["size"] = size

    lie(monkeypatch, change)
    with pytest.raises(HostError) as e:
        get(env)
    assert e.value.code == "source-changed"
    assert f"{size} listed" in e.value.evidence[0]


def test_a_license_cannot_write_on_the_terminal(hub: Hub, env: Env) -> None:
    hub.faults.license = "mit\x1b[2J\x07"
    assert asyncio.run(estimate(REPO, env=env)).license == "mit?[2J?"


def test_a_listing_of_many_files_is_quick() -> None:
    files = [RemoteFile(name=f"sub/f{i}.safetensors", locator="x", size=1, sha256=f"{i:064}") for i in range(20_000)]
    begun = time.process_time()
    from firstlight.fetch.select import order, select

    kept, _ = select(checked(Listing(ref="x", source="hub", files=files)).files)
    assert len(order(kept)) == 20_000
    assert time.process_time() - begun < 3


@pytest.mark.parametrize("place", ["cache", "folder"])
def test_files_of_one_content_are_moved_as_one_where_they_lie_as_one(hub: Hub, env: Env, tmp_path: Path, place: str) -> None:
    """Two names for the same bytes, which in the cache share their blob: real repositories have them."""
    folder = hub.folder / REPO / COMMIT
    (folder / "sub").mkdir()
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(folder / name, folder / "sub" / name)
    shutil.copy(folder / "model-00003-of-00006.safetensors", folder / "sub" / "again.safetensors")
    hub.faults.bytes_per_second = 2_000_000
    fetched = get(env, destination=None if place == "cache" else str(tmp_path / "to"))
    theirs = digests(folder)
    assert digests(Path(fetched.path)) == {n: theirs[n] for n in fetched.files}
    assert {"sub/config.json", "sub/tokenizer.json", "sub/again.safetensors"} <= set(fetched.files)
    assert (fetched.bytes_fetched < sum(fetched.files.values())) == (place == "cache")
    assert get(env, destination=None if place == "cache" else str(tmp_path / "to")).bytes_fetched == 0
    assert len(json.loads(Path(fetched.manifest or "").read_text())["files"]) == len(fetched.files)


# one folder, two revisions


def later(hub: Hub, shards: int) -> dict[str, str]:
    write_model(hub.folder / REPO / LATER, shards=shards, size=300_000, seed=7)
    (hub.folder / REPO / LATER / "LICENSE").write_text("Another license")
    hub.move(f"{REPO}={LATER}")
    return digests(hub.folder / REPO / LATER)


def test_the_earlier_revision_stays_whole_until_the_new_one_is(hub: Hub, env: Env, tmp_path: Path) -> None:
    to = tmp_path / "to"
    hub.move(f"{REPO}={COMMIT}")
    get(env, destination=str(to))
    old = digests(to)
    theirs = later(hub, 6)
    hub.faults.bytes_per_second = 400_000
    seen: list[dict[str, str]] = []

    async def run() -> None:
        progress: list[FetchProgress] = []
        task = asyncio.create_task(fetch(REPO, env=env, destination=str(to), on_progress=progress.append))
        while not progress or progress[-1].files_done < 6:
            await asyncio.sleep(0.05)
            assert not task.done()
        seen.append(digests(to))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        seen.append(digests(to))

    asyncio.run(run())
    assert seen == [old, old]
    hub.faults.bytes_per_second = 0
    fetched = get(env, destination=str(to))
    assert 0 < fetched.bytes_fetched < sum(fetched.files.values())
    assert digests(to) == {n: theirs[n] for n in fetched.files}
    assert not (to / ".firstlight" / "next").exists()


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_the_new_revision_lacks_is_set_aside(hub: Hub, env: Env, tmp_path: Path, interrupted: bool) -> None:
    """Six shards and an index before, one file now: an engine that found the old index would load the old weights."""
    to = tmp_path / "to"
    hub.move(f"{REPO}={COMMIT}")
    if interrupted:
        hub.faults.wrong_name = "model-00006-of-00006.safetensors"
        with pytest.raises(HostError):
            get(env, destination=str(to))
    else:
        get(env, destination=str(to))
    (to / "mine.txt").write_text("somebody's own")
    theirs = later(hub, 4)
    fetched = get(env, destination=str(to))
    assert digests(to) == {n: theirs[n] for n in fetched.files} | {"mine.txt": digests(to)["mine.txt"]}
    (finding,) = [f for f in fetched.findings if f.code == "earlier-revision"]
    assert finding.hint is not None
    aside = Path(finding.hint.split()[2].rstrip(","))
    assert {p.name for p in aside.iterdir()} <= {f"model-0000{i}-of-00006.safetensors" for i in range(1, 7)}


def test_another_model_in_the_same_folder_is_left_alone(hub: Hub, env: Env, tmp_path: Path) -> None:
    from hub.models import gguf

    for name in ("a", "b"):
        folder = hub.folder / "org" / name / (name * 40)
        folder.mkdir(parents=True)
        (folder / f"{name}-Q4_K_M.gguf").write_bytes(gguf(50_000, 1))
    get(env, "org/a", destination=str(tmp_path / "to"))
    fetched = get(env, "org/b", destination=str(tmp_path / "to"))
    assert sorted(p.name for p in (tmp_path / "to").glob("*.gguf")) == ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"]
    assert fetched.findings == []


def test_a_file_that_was_written_over_is_noticed_without_verify(hub: Hub, env: Env, tmp_path: Path) -> None:
    get(env, destination=str(tmp_path / "to"))
    shard = tmp_path / "to" / "model-00002-of-00006.safetensors"
    shard.write_bytes(bytes(shard.stat().st_size))
    again = get(env, destination=str(tmp_path / "to"))
    assert again.bytes_fetched == shard.stat().st_size
    os.utime(shard)
    assert get(env, destination=str(tmp_path / "to")).bytes_fetched == 0


# disks and folders


def mounted(folder: Path, *options: str) -> Iterator[Path]:
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", *options, str(folder)], check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 64 KiB that grows on demand."""
    yield from mounted(tmp_path / "full", "-t", "tmpfs", "-o", "size=64k", "none")


@pytest.mark.parametrize("place", ["cache", "folder"])
def test_a_disk_that_is_full_at_every_step(hub: Hub, env: Env, full_disk: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """It grows by 60 KB at a time: each run ends as `disk-full`, the last one with the right files."""
    monkeypatch.setattr("firstlight.fetch.session.room_findings", lambda *_: [])
    env = {**env, "HF_HOME": str(full_disk / "hf")}
    to = None if place == "cache" else str(full_disk / "to")
    ends = []
    for size in range(64, 3000, 60):
        subprocess.run(["mount", "-o", f"remount,size={size}k", str(full_disk)], check=True)
        try:
            fetched = get(env, destination=to)
            break
        except HostError as e:
            ends.append(e)
        ref = full_disk / "hf/hub/models--org--tiny/refs/main"
        assert not ref.exists() or ref.read_text() == COMMIT
    assert {e.code for e in ends} == {"disk-full"}
    assert all("goes on" in (e.hint or "") for e in ends)
    assert len(ends) > 20
    theirs = digests(hub.folder / REPO / COMMIT)
    assert digests(Path(fetched.path)) == {n: theirs[n] for n in fetched.files}


def test_a_target_that_cannot_be_written(hub: Hub, env: Env, tmp_path: Path) -> None:
    for folder in mounted(tmp_path / "ro", "-t", "tmpfs", "-o", "ro,size=8m", "none"):
        with pytest.raises(HostError) as e:
            get(env, destination=str(folder / "to"))
        assert (e.value.code, hub.counts.bodies) == ("disk-failed", 0)
        assert "Read-only" in str(e.value.evidence)


def test_links_in_a_circle(hub: Hub, env: Env, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(HostError) as e:
        get(env, destination=str(tmp_path / "a" / "to"))
    assert e.value.code == "disk-failed"
    model = write_model(tmp_path / "share", shards=2, size=1000, extras=False)
    (model / "loop").symlink_to(model)
    (model / "gone.safetensors").symlink_to("nowhere")
    fetched = get(env, str(model), destination=str(tmp_path / "to"))
    assert digests(tmp_path / "to") == {n: d for n, d in digests(model).items() if not n.startswith("loop")}
    assert "gone.safetensors" not in fetched.files


def test_a_folder_where_a_file_should_be(hub: Hub, env: Env, tmp_path: Path) -> None:
    (tmp_path / "to" / "model-00001-of-00006.safetensors" / "x").mkdir(parents=True)
    with pytest.raises(HostError) as e:
        get(env, destination=str(tmp_path / "to"))
    assert e.value.code == "disk-failed"
    assert "model-00001-of-00006.safetensors" in str(e.value.evidence)


def test_a_folder_that_somebody_removes_meanwhile(hub: Hub, env: Env, tmp_path: Path) -> None:
    hub.faults.bytes_per_second = 300_000

    async def run() -> None:
        progress: list[FetchProgress] = []
        task = asyncio.create_task(fetch(REPO, env=env, destination=str(tmp_path / "to"), on_progress=progress.append))
        while not progress or progress[-1].bytes_done < 200_000:
            await asyncio.sleep(0.02)
            assert not task.done()
        shutil.rmtree(tmp_path / "to", ignore_errors=True)
        await task

    with pytest.raises(HostError) as e:
        asyncio.run(run())
    assert e.value.code == "target-removed"
    hub.faults.bytes_per_second = 0
    theirs = digests(hub.folder / REPO / COMMIT)
    fetched = get(env, destination=str(tmp_path / "to"))
    assert digests(tmp_path / "to") == {n: theirs[n] for n in fetched.files}


class Killed(BaseException):
    """Not an error that anybody handles."""


class Steps:
    """The first `limit` steps happen, none after them."""

    def __init__(self, limit: int) -> None:
        self.limit, self.taken = limit, 0

    def take(self, real: Callable[..., Any], *arguments: Any) -> Any:
        self.taken += 1
        if self.taken > self.limit:
            raise Killed
        return real(*arguments)


@pytest.mark.parametrize("place", ["cache", "folder"])
def test_killed_between_any_two_steps_of_landing(hub: Hub, env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Each rename, link and note in turn is the last thing that happens; the next run finds its way."""
    to = None if place == "cache" else str(tmp_path / "to")
    theirs = digests(hub.folder / REPO / COMMIT)
    real_replace, real_write = Path.replace, os.write

    killed = 0
    for after in range(40):
        shutil.rmtree(tmp_path / "to", ignore_errors=True)
        shutil.rmtree(tmp_path / "hf", ignore_errors=True)
        steps = Steps(after)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", lambda self, target, steps=steps: steps.take(real_replace, self, target))
            patch.setattr("firstlight.fetch.manifest.os.write", lambda fd, data, steps=steps: steps.take(real_write, fd, data))
            with contextlib.suppress(Killed, FirstlightError):
                get(env, destination=to)
        killed += steps.taken > after
        fetched = get(env, destination=to)
        assert digests(Path(fetched.path)) == {n: theirs[n] for n in fetched.files}
        if steps.taken <= after:
            break
    assert killed > 10
