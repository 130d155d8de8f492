"""`up` and its kin on the fake engine: a real process that logs, serves and dies as a script says."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from e2e_runner import FAKE_PYTHON, LIMIT_SECONDS, Firstlight, alive, hashes, run_folder, wait_for

ACCEPTED = ("--accept", "known-answers", "--accept", "trivial-continuations")


def up(folder: Path, *more: str) -> tuple[str, ...]:
    return ("up", str(folder), "--engine", "vllm", "--engine-python", str(FAKE_PYTHON), "--name", "tiny", *more)


def reachable(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def script(name: str) -> dict[str, str]:
    return {"FAKE_ENGINE_SCRIPT": name}


def test_incoherent_answers_end_with_6_and_acceptance_by_name_serves(firstlight: Firstlight, llama_folder: Path) -> None:
    before = hashes(llama_folder)
    refused = firstlight(*up(llama_folder, "--skip", "bench"))
    assert refused.returncode == 6, refused.stderr
    assert "verification-failed" in refused.stderr
    assert "known-answers" in refused.stderr
    (run,) = firstlight.runs()
    assert run["state"] == "ready"
    names = [
        c["name"] for c in json.loads((run_folder(run) / "verdict.json").read_text())["checks"] if not c["passed"] and not c["skipped"]
    ]
    accepted = firstlight(*up(llama_folder, "--skip", "bench", *(w for n in names for w in ("--accept", n))))
    assert accepted.returncode == 0, accepted.stderr
    assert "http://127.0.0.1:" in accepted.stdout
    assert [r["state"] for r in firstlight.runs()] == ["serving"]
    assert hashes(llama_folder) == before


def test_a_port_that_a_stranger_takes_meanwhile_is_left_to_it(
    firstlight: Firstlight, llama_folder: Path, own_home: Path, tmp_path: Path
) -> None:
    """The engine comes to bind its port only when the stranger has it, however slow this machine is."""
    go = tmp_path / "go"
    waits = {"steps": [{"wait_file": str(go)}, {"serve": {}}]}
    process = firstlight.start(*up(llama_folder, "--skip", "verify", "--skip", "bench"), env=script(json.dumps(waits)))
    wait_for(lambda: [p for p in own_home.rglob("attempts/1/supervisor.jsonl") if "engine-started" in p.read_text()])
    (launch,) = own_home.rglob("attempts/1/launch.json")
    port = json.loads(launch.read_text())["port"]
    fake = Path(__file__).parents[1] / "fake_engine/fake_engine.py"
    with subprocess.Popen([sys.executable, str(fake), "plain", "--port", str(port)], stdout=subprocess.DEVNULL) as stranger:
        try:
            wait_for(lambda: reachable(port))
            go.touch()
            _, said = process.communicate(timeout=LIMIT_SECONDS)
        finally:
            stranger.kill()
    assert process.returncode == 0, said
    (run,) = firstlight.runs()
    assert run["state"] == "serving"
    assert json.loads((run_folder(run) / "launch.json").read_text())["port"] != port
    causes = [json.loads(p.read_text())["cause"] for p in run_folder(run).glob("attempts/*/diagnosis.json")]
    assert ("port-in-use", f"another program took port {port} while the engine started") in [(c["code"], c["title"]) for c in causes]
    assert "Traceback" not in said


def test_run_folder_holds_every_struct_the_events_and_the_exact_command(firstlight: Firstlight, llama_folder: Path) -> None:
    firstlight(*up(llama_folder, "--skip", "verify", "--skip", "bench"))
    folder = run_folder(firstlight.runs()[0])
    for name in ("run", "intent", "checkpoint", "machine", "plan", "launch", "endpoint"):
        assert json.loads((folder / f"{name}.json").read_text())["schema"] == "firstlight/1"
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [e["seq"] for e in events] == list(range(len(events)))
    assert {"stage-started", "stage-finished", "phase", "ready"} <= {e["kind"] for e in events}
    assert "--served-model-name" in (folder / "command.txt").read_text()
    assert list((folder / "probe").iterdir())
    assert (folder / "attempts" / "1" / "engine.log").stat().st_size > 0
    offline = firstlight(
        "plan",
        "--checkpoint",
        str(folder / "checkpoint.json"),
        "--machine",
        str(folder / "machine.json"),
        "--engine",
        "vllm@0.32.0",
        "-o",
        "json",
    )
    best, saved = json.loads(offline.stdout)["best"], json.loads((folder / "plan.json").read_text())["best"]
    assert (best["args"], best["max_model_len"]) == (saved["args"], saved["max_model_len"])


def test_the_same_plan_again_is_verified_again_and_another_is_refused(firstlight: Firstlight, llama_folder: Path) -> None:
    assert firstlight(*up(llama_folder, "--skip", "verify", "--skip", "bench")).returncode == 0
    again = firstlight(*up(llama_folder, "--skip", "verify", "--skip", "bench"))
    assert again.returncode == 0
    assert len(firstlight.runs()) == 1
    other = firstlight(*up(llama_folder, "--skip", "verify", "--skip", "bench", "--max-model-len", "1024"))
    assert other.returncode == 2
    assert "name-in-use" in other.stderr
    assert "firstlight down tiny" in other.stderr


def test_a_second_start_at_the_same_time_says_what_runs(firstlight: Firstlight, llama_folder: Path) -> None:
    first = firstlight.start(*up(llama_folder, "--skip", "verify", "--skip", "bench"), env=script("slow"))
    wait_for(lambda: any(r["state"] == "loading" for r in firstlight.runs()))
    second = firstlight(*up(llama_folder))
    assert second.returncode == 2
    assert "run-in-progress" in second.stderr
    assert str(first.pid) in second.stderr
    assert first.wait(60) == 0


def test_down_stops_and_frees_and_is_idempotent(firstlight: Firstlight, llama_folder: Path) -> None:
    firstlight(*up(llama_folder, "--skip", "verify", "--skip", "bench"))
    run = firstlight.runs()[0]
    pids = [run["engine_process"]["pid"], run["supervisor"]["pid"]]
    assert firstlight("down", "tiny").returncode == 0
    assert not any(alive(p) for p in pids)
    assert firstlight.runs()[0]["state"] == "stopped"
    assert firstlight("down", "tiny").returncode == 0


def test_context_too_long_is_healed_in_one_more_launch(firstlight: Firstlight, llama_folder: Path) -> None:
    healed = firstlight(*up(llama_folder, "--skip", "verify", "--skip", "bench"), env=script("context-too-long"))
    assert healed.returncode == 0, healed.stderr
    folder = run_folder(firstlight.runs()[0])
    assert json.loads((folder / "plan.json").read_text())["best"]["max_model_len"] == 4096
    story = (folder / "story.md").read_text()
    assert "kv-too-small-for-max-len" in story
    assert "max_model_len = 4096" in story
    assert (folder / "attempts" / "2" / "engine.log").exists()


def test_context_too_long_after_the_dashes_yields_as_well(firstlight: Firstlight, llama_folder: Path) -> None:
    healed = firstlight(
        *up(llama_folder, "--skip", "verify", "--skip", "bench", "--", "--max-model-len", "7777"), env=script("context-too-long")
    )
    assert healed.returncode == 0, healed.stderr
    assert "7777" not in (run_folder(firstlight.runs()[0]) / "command.txt").read_text()


@pytest.mark.parametrize(("name", "code"), [("oom-weights", "oom-weight-load"), ("segfault-loading", None)])
def test_a_start_that_fails_ends_with_5_and_its_first_cause(
    firstlight: Firstlight, llama_folder: Path, name: str, code: str | None
) -> None:
    failed = firstlight(*up(llama_folder), env=script(name))
    assert failed.returncode == 5, failed.stderr
    run = firstlight.runs()[0]
    assert run["state"] == "failed"
    diagnosis = json.loads((run_folder(run) / "diagnosis.json").read_text())
    assert diagnosis["outcome"] == "failed"
    if code:
        assert diagnosis["cause"]["code"] == code
        assert code in failed.stderr
    assert not alive(run["engine_process"]["pid"])


@pytest.mark.parametrize("how", ["dies-on-first-request", "dies-after-ready"])
def test_an_engine_that_dies_while_it_is_verified_is_told_by_its_cause(firstlight: Firstlight, llama_folder: Path, how: str) -> None:
    done = firstlight(*up(llama_folder, "--skip", "bench"), env=script(how))
    assert done.returncode == 5, done.stderr
    assert "verification-failed" not in done.stderr + done.stdout
    (run,) = firstlight.runs()
    assert run["state"] == "failed"
    assert (run_folder(run) / "diagnosis.json").exists()
    assert not alive(run["supervisor"]["pid"])


def test_kill_9_of_the_engine_while_it_loads_is_noticed_at_once(firstlight: Firstlight, llama_folder: Path) -> None:
    process = firstlight.start(*up(llama_folder, "--attempts", "1"), env=script("slow"))
    run = wait_for(lambda: next((r for r in firstlight.runs() if r["state"] == "loading" and r["engine_process"]), None))
    killed = time.time()
    os.kill(run["engine_process"]["pid"], signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 5, err
    events = [json.loads(line) for line in (run_folder(run) / "events.jsonl").read_text().splitlines()]
    (died,) = [e for e in events if e["kind"] == "died"]
    assert died["time"] - killed < 0.5
    assert "SIGKILL" in err


@pytest.mark.parametrize("victim", ["client", "supervisor"])
def test_kill_9_of_a_firstlight_process_leaves_nothing_that_down_does_not_stop(
    firstlight: Firstlight, llama_folder: Path, victim: str
) -> None:
    process = firstlight.start(*up(llama_folder), env=script("slow"))
    run = wait_for(lambda: next((r for r in firstlight.runs() if r["state"] == "loading" and r["engine_process"]), None))
    os.kill(process.pid if victim == "client" else run["supervisor"]["pid"], signal.SIGKILL)
    process.communicate(timeout=30)
    assert [r["id"] for r in firstlight.runs()] == [run["id"]]
    assert firstlight("down", "tiny").returncode == 0
    assert not alive(run["engine_process"]["pid"])
    assert not alive(run["supervisor"]["pid"])
    assert firstlight.runs()[0]["state"] in ("stopped", "failed")


def test_ctrl_c_stops_gracefully(firstlight: Firstlight, llama_folder: Path) -> None:
    process = firstlight.start(*up(llama_folder), env=script("slow"))
    run = wait_for(lambda: next((r for r in firstlight.runs() if r["state"] == "loading" and r["engine_process"]), None))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert not alive(run["engine_process"]["pid"])
    assert firstlight.runs()[0]["state"] == "stopped"


def test_dry_run_shows_the_command_and_changes_nothing(firstlight: Firstlight, llama_folder: Path) -> None:
    shown = firstlight(*up(llama_folder, "--dry-run"))
    assert shown.returncode == 0, shown.stderr
    assert "--served-model-name" in shown.stdout
    assert firstlight.runs() == []


def test_jsonl_streams_events_and_ends_with_the_run(firstlight: Firstlight, llama_folder: Path) -> None:
    out = firstlight(*up(llama_folder, "--skip", "verify", "--skip", "bench", "-o", "jsonl")).stdout
    documents = [json.loads(line) for line in out.splitlines()]
    assert [d["kind"] for d in documents[:-1]].count("stage-finished") > 5
    assert documents[-1]["kind"] == "Run"
    assert documents[-1]["state"] == "serving"


def test_a_run_of_a_newer_schema_is_shown_and_not_touched(firstlight: Firstlight, llama_folder: Path, own_home: Path) -> None:
    newer = own_home / "state" / "firstlight" / "runs" / "tiny-20990101-000000-abcd"
    newer.mkdir(parents=True)
    text = json.dumps({"schema": "firstlight/2", "kind": "Run", "id": newer.name})
    (newer / "run.json").write_text(text)
    listed = firstlight("get", "runs", "--all")
    assert listed.returncode == 0
    assert "schema-newer" in listed.stderr
    described = firstlight("describe", newer.name)
    assert described.returncode == 2
    assert "schema-newer" in described.stderr
    assert (newer / "run.json").read_text() == text


def test_an_ignored_refusal_of_the_plan_goes_on(firstlight: Firstlight, llama_folder: Path) -> None:
    """The engine's own rule about the context is the plan's blocker; by name it is overridden like any other."""
    asked = ("--max-model-len", "100000", "--rehearse", "never", "--skip", "verify", "--skip", "bench")
    refused = firstlight(*up(llama_folder, *asked))
    assert refused.returncode == 4
    assert "max-model-len-too-large" in refused.stderr
    went_on = firstlight(*up(llama_folder, *asked, "--ignore", "max-model-len-too-large"))
    assert went_on.returncode == 0, went_on.stderr


def test_a_start_that_fails_for_want_of_a_yes_names_it_and_a_yes_to_nothing_is_said(firstlight: Firstlight, llama_folder: Path) -> None:
    taken = (
        "(EngineCore pid=2) ERROR 11-30 10:00:00 [core.py:1] ValueError: Free memory on device cuda:0 (5.0/24.0 GiB) on startup is less "
        "than desired GPU memory utilization (0.9, 21.6 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    )
    occupied = script(json.dumps({"steps": [{"log": taken}, {"exit": 1}]}))
    words = up(llama_folder, "--rehearse", "never", "--skip", "verify", "--skip", "bench")
    refused = firstlight(*words, "--allow", "gpu-memory", env=occupied)
    assert refused.returncode == 5, refused.stderr
    assert "firstlight up … --allow gpu-memory-utilization" in refused.stderr
    assert "--allow gpu-memory: no question of this start has that name" in refused.stderr
    story = run_folder(firstlight.runs()[0]) / "story.md"
    assert "needs a yes: --allow gpu-memory-utilization" in story.read_text()
    tried = firstlight(*words, "--allow", "gpu-memory-utilization", env=occupied)
    assert "changed gpu_memory_utilization = 0.2" in tried.stderr
    assert firstlight.runs()[0]["attempt"] == 2
