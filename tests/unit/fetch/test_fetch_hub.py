"""A model from a hub: layout, selection, faults. The hub is a real server on loopback."""

import asyncio
import json
import os
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hub.models import COMMIT, LATER, REPO, digests, write_model
from hub.server import Hub

from firstlight.core.errors import ConsentError, FirstlightError, HostError, InputError
from firstlight.core.fetch import Fetched, FetchProgress
from firstlight.fetch.fetch import estimate, fetch

Env = dict[str, str]
NEEDED = {
    "config.json",
    "tokenizer.json",
    "LICENSE",
    "model.safetensors.index.json",
    *(f"model-{i:05}-of-00006.safetensors" for i in range(1, 7)),
}


def get(env: Env, ref: str = REPO, **more: Any) -> Fetched:
    return asyncio.run(fetch(ref, env=env, patience=5, **more))


def right(hub: Hub, fetched: Fetched, commit: str = COMMIT) -> bool:
    theirs = digests(hub.folder / REPO / commit)
    return digests(Path(fetched.path)) == {n: d for n, d in theirs.items() if n in NEEDED}


def test_only_what_an_engine_needs_and_the_rest_is_named(hub: Hub, env: Env) -> None:
    fetched = get(env)
    assert set(fetched.files) == NEEDED
    assert right(hub, fetched)
    left = {f.name: f.because for f in fetched.left_out}
    assert left["pytorch_model.bin"] == "the model is there as safetensors"
    assert left["original/consolidated.00.pth"] == "original: another runtime's copy"
    assert fetched.license == "apache-2.0"


def test_the_cache_is_huggingface_hubs_own(hub: Hub, env: Env) -> None:
    from huggingface_hub import scan_cache_dir, snapshot_download

    fetched = get(env)
    cache = Path(env["HF_HOME"]) / "hub"
    info = scan_cache_dir(cache)
    assert not info.warnings
    (repo,) = info.repos
    assert (repo.repo_id, repo.nb_files) == (REPO, len(NEEDED))
    assert "main" in next(iter(repo.revisions)).refs
    found = snapshot_download(REPO, cache_dir=cache, local_files_only=True)
    assert Path(found) == Path(fetched.path)


def test_a_second_fetch_moves_nothing(hub: Hub, env: Env) -> None:
    get(env)
    bodies = hub.counts.bodies
    assert get(env).bytes_fetched == 0
    assert hub.counts.bodies == bodies


def test_offline_uses_what_is_complete_and_asks_nobody(hub: Hub, env: Env) -> None:
    first = get(env)
    requests = hub.counts.requests
    offline = {**env, "HF_HUB_OFFLINE": "1"}
    assert get(offline).path == first.path
    assert hub.counts.requests == requests
    shard = Path(first.path) / "model-00003-of-00006.safetensors"
    shard.unlink()
    with pytest.raises(HostError) as e:
        get(offline)
    assert e.value.code == "offline"
    assert e.value.evidence == (shard.name,)


def test_a_hub_that_is_away_is_no_reason_to_fail(hub: Hub, env: Env) -> None:
    first = get(env)
    away = asyncio.run(fetch(REPO, env={**env, "HF_ENDPOINT": "http://127.0.0.1:9"}, patience=0))
    assert away.path == first.path
    assert [f.code for f in away.findings] == ["hub-unreachable"]


def test_estimate_knows_sizes_license_and_gate_and_writes_nothing(hub: Hub, env: Env) -> None:
    hub.faults.gated = "manual"
    got = asyncio.run(estimate(REPO, env=env))
    assert got.bytes_to_fetch == got.bytes_total == sum((hub.folder / REPO / COMMIT / n).stat().st_size for n in NEEDED)
    assert (got.license, got.gated, got.revision) == ("apache-2.0", "manual", COMMIT)
    assert got.space is not None
    assert got.space.available_bytes
    assert not Path(env["HF_HOME"]).exists()


def test_estimate_counts_what_is_here(hub: Hub, env: Env) -> None:
    get(env, include=["*.json"])
    got = asyncio.run(estimate(REPO, env=env))
    small = sum((hub.folder / REPO / COMMIT / n).stat().st_size for n in NEEDED if n.endswith(".json"))
    assert got.bytes_present == small
    get(env)
    assert asyncio.run(estimate(REPO, env=env)).bytes_to_fetch == 0


@pytest.mark.parametrize(
    "faults",
    [
        {"reset_every": 3, "reset_after": 50_000},
        {"truncate_every": 3},
        {"wrong_bytes_first": 2},  # of all answers: with three, one file could have them all and give up
        {"too_many_first": 5, "retry_after": "0"},
        {"too_many_every": 4, "retry_after": "0"},
        {"error_first": 3, "error_status": 502},
        {"redirects": 4},
        {"no_ranges": True},
        {"no_ranges": True, "reset_every": 4, "reset_after": 100_000},
        {"ignore_range_every": 2},
        {"bytes_per_second": 3e6},
        {"reset_every": 2, "reset_after": 20_000, "redirects": 1, "wrong_bytes_first": 1, "too_many_first": 1},
    ],
    ids=lambda f: "+".join(f),
)
def test_faults_end_with_the_right_bytes(hub: Hub, env: Env, faults: dict[str, Any]) -> None:
    for name, value in faults.items():
        setattr(hub.faults, name, value)
    assert right(hub, get(env))


def test_expired_signed_addresses_are_signed_anew(hub: Hub, env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.faults.signed_seconds, hub.faults.reset_every, hub.faults.reset_after = 0.15, 2, 60_000
    fetched = get(env)
    assert right(hub, fetched)
    assert hub.counts.by_status.get(403, 0) > 0


def test_the_token_goes_to_the_hub_and_not_to_the_cdn(hub: Hub, env: Env) -> None:
    hub.faults.token = "secret"
    with pytest.raises(InputError):
        get(env)
    assert right(hub, get({**env, "HF_TOKEN": "secret"}))
    assert 400 not in hub.counts.by_status


def test_the_token_file_of_hf_login_counts(hub: Hub, env: Env) -> None:
    hub.faults.token = "secret"
    path = Path(env["HF_HOME"]) / "token"
    path.parent.mkdir(parents=True)
    path.write_text("secret\n")
    assert right(hub, get(env))


def test_a_gated_model_says_where_to_consent(hub: Hub, env: Env) -> None:
    hub.faults.token, hub.faults.gated = "secret", "manual"
    with pytest.raises(ConsentError) as e:
        get(env)
    assert e.value.code == "gated-repo"
    assert "HF_TOKEN" in (e.value.hint or "")


def test_a_gate_in_front_of_the_files_alone(hub: Hub, env: Env) -> None:
    """The hub describes gated models to everybody; the refusal comes with the first file."""
    hub.faults.gated, hub.faults.token = "manual", "secret"
    with pytest.raises(ConsentError) as e:
        get({**env, "HF_TOKEN": "another"})
    assert (e.value.code, e.value.hint) == (
        "gated-repo",
        f"accept the terms at {hub.url}/{REPO}, then set HF_TOKEN to a token of that account",
    )
    refused, sent = e.value.evidence
    assert re.fullmatch(r"the hub refuses [\w.-]+: status 403 GatedRepo", refused)  # whichever file was asked first
    assert sent == "a token was sent"


def test_a_token_that_no_header_can_carry(hub: Hub, env: Env) -> None:
    with pytest.raises(InputError) as e:
        get({**env, "HF_TOKEN": "hf_abc def"})
    assert e.value.code == "hub-unauthorized"
    assert "hf_abc" not in str(e.value) + str(e.value.evidence)


def test_offline_still_knows_the_license(hub: Hub, env: Env) -> None:
    get(env)
    assert asyncio.run(estimate(REPO, env={**env, "HF_HUB_OFFLINE": "1"})).license == "apache-2.0"


def test_a_rate_that_somebody_limited_is_not_what_the_link_gives(hub: Hub, env: Env) -> None:
    get(env, limit_rate=700_000)
    get({**env, "HF_HOME": env["HF_HOME"] + "2"}, limit_rate=700_000)
    assert not list(Path(env["HOME"]).rglob("rates.json"))


def test_bytes_that_stay_wrong_are_an_error_and_are_not_kept(hub: Hub, env: Env) -> None:
    hub.faults.wrong_name = "model-00002-of-00006.safetensors"
    with pytest.raises(HostError) as e:
        get(env)
    assert e.value.code == "wrong-bytes"
    assert hub.faults.wrong_name in e.value.message
    hub.faults.wrong_name = ""
    assert right(hub, get(env))


def test_a_branch_that_moves_midway_never_mixes_two_revisions(hub: Hub, env: Env) -> None:
    write_model(hub.folder / REPO / LATER, shards=6, size=300_000, seed=7)
    hub.move(f"{REPO}={COMMIT}")
    hub.faults.move_after, hub.faults.move_to = 3, f"{REPO}={LATER}"
    first = get(env)
    assert first.revision == COMMIT
    assert right(hub, first)
    second = get(env)
    assert second.revision == LATER
    assert right(hub, second, LATER)
    assert right(hub, first)


def test_parts_of_another_revision_are_not_continued(hub: Hub, env: Env, tmp_path: Path) -> None:
    """Into one folder: the first revision is cut off midway, then the branch has moved."""
    write_model(hub.folder / REPO / LATER, shards=6, size=300_000, seed=7)
    hub.move(f"{REPO}={COMMIT}")
    hub.faults.bytes_per_second = 200_000
    _interrupt(env, tmp_path / "to", after_bytes=100_000)
    assert list((tmp_path / "to" / ".firstlight" / "parts").glob("*.journal"))
    hub.faults.bytes_per_second = 0
    hub.move(f"{REPO}={LATER}")
    assert right(hub, get(env, destination=str(tmp_path / "to")), LATER)


def _interrupt(env: Env, to: Path, after_bytes: int) -> None:
    async def run() -> None:
        seen: list[FetchProgress] = []
        task = asyncio.create_task(fetch(REPO, env=env, destination=str(to), on_progress=seen.append))
        while not seen or seen[-1].bytes_done < after_bytes:
            await asyncio.sleep(0.02)
            assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_cancelling_is_quick_and_the_next_run_goes_on(hub: Hub, env: Env, tmp_path: Path) -> None:
    hub.faults.bytes_per_second = 300_000
    _interrupt(env, tmp_path / "to", after_bytes=400_000)
    hub.faults.bytes_per_second = 0
    hub.counts.bytes = 0
    fetched = get(env, destination=str(tmp_path / "to"))
    assert right(hub, fetched)
    assert fetched.bytes_fetched < sum(fetched.files.values()) - 200_000


def test_two_at_once_share_the_work(hub: Hub, env: Env) -> None:
    hub.faults.bytes_per_second = 1_500_000

    async def both() -> tuple[Fetched, Fetched, set[str]]:
        phases: set[str] = set()
        first = asyncio.create_task(fetch(REPO, env=env))
        await asyncio.sleep(0.3)
        second = asyncio.create_task(fetch(REPO, env=env, on_progress=lambda p: phases.add(p.phase)))
        return await first, await second, phases

    a, b, phases = asyncio.run(both())
    assert right(hub, b)
    assert "waiting" in phases
    assert a.bytes_fetched == sum(a.files.values())
    assert b.bytes_fetched == 0


def test_limit_rate_holds(hub: Hub, env: Env) -> None:
    begun = time.monotonic()
    fetched = get(env, limit_rate=1_000_000)
    rate = fetched.bytes_fetched / (time.monotonic() - begun)
    assert 500_000 < rate < 1_300_000


def test_progress_is_one_bar(hub: Hub, env: Env) -> None:
    hub.faults.bytes_per_second = 250_000
    seen: list[FetchProgress] = []
    get(env, on_progress=seen.append)
    moving = [p for p in seen if p.phase == "fetching" and p.bytes_per_second]
    assert moving
    assert all(a.bytes_done <= b.bytes_done for a, b in pairwise(seen))
    assert seen[-1].phase == "done"
    assert seen[-1].bytes_done == seen[-1].bytes_total
    assert {f.state for f in seen[-1].files} == {"done"}
    assert moving[-1].eta_seconds is not None


def test_an_index_that_names_missing_shards_ends_early(hub: Hub, env: Env) -> None:
    (hub.folder / REPO / COMMIT / "model-00005-of-00006.safetensors").unlink()
    with pytest.raises(HostError) as e:
        get(env)
    assert e.value.code == "index-incomplete"
    assert e.value.evidence == ("model-00005-of-00006.safetensors",)
    with pytest.raises(HostError):
        get(env)


def test_a_hostile_file_name_is_refused(hub: Hub, env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = hub.folder / REPO / COMMIT
    monkeypatch.setattr(hub, "files", lambda repo, commit: {"../../evil.json": folder / "config.json"})
    with pytest.raises(FirstlightError) as e:
        get(env)
    assert e.value.code == "unsafe-file-name"


def test_validate_sees_each_shard_and_its_blocker_ends_the_fetch(hub: Hub, env: Env) -> None:
    from firstlight.core.findings import Finding, Severity

    seen: list[str] = []

    def validate(path: Path) -> list[Finding]:
        seen.append(path.name)
        return []

    get(env, validate=validate)
    assert len(seen) == 6
    bad = Finding(code="header-cut", severity=Severity.BLOCKER, message="the header is cut")
    with pytest.raises(HostError) as e:
        get({**env, "HF_HOME": env["HF_HOME"] + "2"}, validate=lambda path: [bad])
    assert e.value.code == "header-cut"
    with pytest.raises(HostError):
        get({**env, "HF_HOME": env["HF_HOME"] + "2"}, validate=lambda path: [bad])


def test_bit_rot_is_repaired_by_that_shard_alone(hub: Hub, env: Env) -> None:
    fetched = get(env)
    blob = (Path(fetched.path) / "model-00004-of-00006.safetensors").resolve()
    data, state = bytearray(blob.read_bytes()), blob.stat()
    data[1000] ^= 1
    blob.write_bytes(data)
    os.utime(blob, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert get(env).bytes_fetched == 0
    again = get(env, verify=True)
    assert again.bytes_fetched == len(data)
    assert [f.code for f in again.findings] == ["file-repaired"]
    assert right(hub, again)


def test_the_manifest_tells_what_was_verified(hub: Hub, env: Env) -> None:
    fetched = get(env)
    assert fetched.manifest is not None
    manifest = json.loads(Path(fetched.manifest).read_text())
    theirs = digests(hub.folder / REPO / COMMIT)
    assert {f["name"]: f["sha256"] for f in manifest["files"]} == {n: theirs[n] for n in NEEDED}
    assert manifest["revision"] == COMMIT


def test_unknown_models_and_revisions(hub: Hub, env: Env) -> None:
    with pytest.raises(InputError) as e:
        get(env, "org/absent")
    assert e.value.code == "model-not-found"
    with pytest.raises(InputError) as e:
        get(env, f"{REPO}@v9")
    assert e.value.code == "revision-not-found"


def test_network_that_never_comes_back_gives_up_and_keeps_what_it_has(hub: Hub, env: Env) -> None:
    hub.faults.error_first = 10_000
    begun = time.monotonic()
    with pytest.raises(HostError) as e:
        asyncio.run(fetch(REPO, env=env, patience=0.5))
    assert e.value.code == "network-failed"
    assert time.monotonic() - begun < 10


def test_what_had_landed_before_a_failure_is_not_moved_again(hub: Hub, env: Env, tmp_path: Path) -> None:
    """Into a plain folder, whose names say nothing about content."""
    hub.faults.wrong_name = "model-00006-of-00006.safetensors"
    with pytest.raises(HostError):
        get(env, destination=str(tmp_path / "to"))
    landed = {p.name for p in (tmp_path / "to").iterdir() if p.is_file()}
    assert landed
    hub.faults.wrong_name = ""
    hub.counts.by_file.clear()
    fetched = get(env, destination=str(tmp_path / "to"))
    assert not landed & set(hub.counts.by_file)
    assert right(hub, fetched)


def test_files_that_were_put_there_by_hand_are_hashed_and_kept(hub: Hub, env: Env, tmp_path: Path) -> None:
    import shutil

    (tmp_path / "to").mkdir()
    for i in (1, 2):
        shutil.copy(hub.folder / REPO / COMMIT / f"model-0000{i}-of-00006.safetensors", tmp_path / "to")
    wrong = tmp_path / "to" / "model-00002-of-00006.safetensors"
    wrong.write_bytes(wrong.read_bytes()[:-1] + b"?")
    fetched = get(env, destination=str(tmp_path / "to"))
    assert right(hub, fetched)
    assert fetched.bytes_fetched < sum(fetched.files.values()) - 250_000


def test_huggingface_hub_moves_nothing_that_we_have_and_we_nothing_that_it_has(hub: Hub, env: Env) -> None:
    from huggingface_hub import snapshot_download

    ours = get(env)
    bodies = hub.counts.bodies
    cache = Path(env["HF_HOME"]) / "hub"
    assert snapshot_download(REPO, cache_dir=cache, endpoint=hub.url, allow_patterns=sorted(NEEDED)) == ours.path
    assert hub.counts.bodies == bodies
    other = Path(env["HF_HOME"] + "2") / "hub"
    theirs = snapshot_download(REPO, cache_dir=other, endpoint=hub.url, allow_patterns=sorted(NEEDED))
    bodies = hub.counts.bodies
    again = get({**env, "HF_HOME": str(other.parent)})
    assert (again.path, again.bytes_fetched) == (theirs, 0)
    assert hub.counts.bodies == bodies
    elsewhere = {**env, "HF_HOME": str(other.parent)}
    assert [f.code for f in asyncio.run(estimate(REPO, env=elsewhere)).findings] == ["not-verified"]
    assert get(elsewhere, verify=True).bytes_fetched == 0
    assert asyncio.run(estimate(REPO, env=elsewhere)).findings == []


def test_a_connection_that_falls_silent_is_replaced(hub: Hub, env: Env) -> None:
    hub.faults.stall_first, hub.faults.stall_seconds = 3, 20
    begun = time.monotonic()
    assert right(hub, get(env, silence=0.4))
    assert time.monotonic() - begun < 10


def test_a_place_that_cannot_be_written_is_a_message(hub: Hub, env: Env, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError) as e:
        get(env, destination=str(tmp_path / "file" / "to"))
    assert e.value.code == "disk-failed"
