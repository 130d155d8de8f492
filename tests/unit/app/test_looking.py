"""One way to look at model, machine and engine, and every way an engine comes to be chosen."""

import json
import shutil
from pathlib import Path

import pytest

from firstlight.app.group import run
from firstlight.app.looking import choose_engine, engine_hints, engine_missing, install_of, is_at, look
from firstlight.app.plan_options import Planning
from firstlight.catalog.engines import newest
from firstlight.catalog.gpus import imagine
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import Exit, FirstlightError, UsageError
from firstlight.core.findings import Severity
from firstlight.core.intent import Intent
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import EngineRef
from firstlight.core.schema import encode
from firstlight.probe.local import LocalHost

VLLM = EngineInstall(engine="vllm", version="0.25.1", python="/env/bin/python")
OLDER = EngineInstall(engine="vllm", version="0.16.0", python="/old/bin/python")
LLAMACPP = EngineInstall(engine="llamacpp", version="b6000", binary="/usr/bin/llama-server")
BROKEN = EngineInstall(engine="vllm", python="/broken/bin/python")


def model(format: str) -> Checkpoint:
    return Checkpoint(ref="m", format=format)


def test_the_engine_that_was_named_wins() -> None:
    chosen = choose_engine(model("gguf"), [LLAMACPP, VLLM], EngineRef(name="vllm"))
    assert (chosen.adapter.name, chosen.install, chosen.findings) == ("vllm", VLLM, ())
    assert chosen.engine == EngineRef(name="vllm", version="0.25.1")


def test_the_release_that_was_named_wins_though_another_is_installed() -> None:
    chosen = choose_engine(model("safetensors"), [VLLM], EngineRef(name="vllm", version="0.16.0"))
    assert (chosen.engine.version, chosen.install, chosen.findings) == ("0.16.0", None, ())
    assert choose_engine(model("safetensors"), [VLLM, OLDER], EngineRef(name="vllm", version="0.16.0")).install == OLDER


def test_a_name_that_no_engine_has() -> None:
    with pytest.raises(UsageError) as refused:
        choose_engine(model("gguf"), [LLAMACPP], EngineRef(name="tgi"))
    assert refused.value.code == "engine-unknown"


def test_what_is_installed_and_can_serve_goes_before_what_would_be_preferred() -> None:
    assert choose_engine(model("gguf"), [VLLM], None).install == VLLM
    assert choose_engine(model("gguf"), [VLLM, LLAMACPP], None).install == LLAMACPP
    assert choose_engine(model("safetensors"), [LLAMACPP, VLLM], None).engine == EngineRef(name="vllm", version="0.25.1")


def test_an_install_that_cannot_say_its_version_is_none() -> None:
    assert install_of([BROKEN, VLLM], EngineRef(name="vllm")) == VLLM
    assert choose_engine(model("safetensors"), [BROKEN], None).install is None


def test_the_interpreter_that_was_named_goes_before_the_first() -> None:
    assert install_of([VLLM, OLDER], EngineRef(name="vllm"), "/old/bin/python") == OLDER
    assert install_of([VLLM, OLDER], EngineRef(name="vllm"), "/old") == OLDER
    assert install_of([VLLM, OLDER], EngineRef(name="vllm"), "/elsewhere/python") == VLLM
    assert is_at(LLAMACPP, "/usr/bin/llama-server")


@pytest.mark.parametrize(
    ("format", "name", "version"), [("gguf", "llamacpp", None), ("safetensors", "vllm", newest()), ("config-only", "vllm", newest())]
)
def test_where_none_is_installed_the_format_chooses_and_it_is_told(format: str, name: str, version: str | None) -> None:
    chosen = choose_engine(model(format), [BROKEN], None)
    assert (chosen.engine, chosen.install) == (EngineRef(name=name, version=version), None)
    (finding,) = chosen.findings
    assert (finding.code, finding.severity) == ("engine-assumed", Severity.NOTE)
    assert chosen.adapter.title in finding.message
    assert version is None or version in finding.message


def test_a_llamacpp_alone_does_not_serve_safetensors() -> None:
    chosen = choose_engine(model("safetensors"), [LLAMACPP], None)
    assert (chosen.engine.name, chosen.install, chosen.findings[0].code) == ("vllm", None, "engine-assumed")


def test_no_engine_takes_it() -> None:
    with pytest.raises(UsageError) as refused:
        choose_engine(model("unknown"), [VLLM, LLAMACPP], None)
    assert refused.value.code == "no-engine-for-model"
    assert choose_engine(model("unknown"), [VLLM], EngineRef(name="vllm")).install == VLLM


def test_what_starts_needs_it_installed() -> None:
    chosen = choose_engine(model("safetensors"), [LLAMACPP], None)
    missing = engine_missing(chosen, model("safetensors"), Machine(hostname="h", engines=[LLAMACPP]), "/x/python")
    assert (missing.code, missing.exit_code) == ("engine-missing", Exit.PREFLIGHT_BLOCKED)
    assert missing.evidence == ("llamacpp b6000 in /usr/bin/llama-server", "asked for: /x/python")
    assert "vllm" in (missing.hint or "")


def test_our_environments_are_asked_newest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name in ("vllm-0.9.2-cpu", "vllm-0.32.0-cpu", "vllm-0.16.0"):
        python = tmp_path / "firstlight" / "engines" / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()
    found = engine_hints(LocalHost(), "/mine")
    assert [p if p == "/mine" else Path(p).parts[-3] for p in found] == ["/mine", "vllm-0.32.0-cpu", "vllm-0.16.0", "vllm-0.9.2-cpu"]


def planning(tmp_path: Path, machine: Machine, format: str = "safetensors") -> Planning:
    paths = {"machine_file": tmp_path / "machine.json", "checkpoint_file": tmp_path / "checkpoint.json"}
    paths["machine_file"].write_bytes(encode(machine))
    paths["checkpoint_file"].write_bytes(encode(model(format)))
    return Planning(intent=Intent(model="m"), **{k: str(v) for k, v in paths.items()})


def test_a_machine_from_a_file_brings_its_own_engines(tmp_path: Path) -> None:
    looked = look(planning(tmp_path, Machine(hostname="far", engines=[OLDER])))
    assert (looked.machine.hostname, looked.install, looked.findings) == ("far", OLDER, ())


def test_a_machine_that_is_not_there_is_told_what_was_assumed(tmp_path: Path) -> None:
    looked = look(planning(tmp_path, imagine("1xrtx-4090")))
    assert (looked.engine, [f.code for f in looked.findings]) == (EngineRef(name="vllm", version=newest()), ["engine-assumed"])


def test_the_engine_that_answers_is_this_hosts_own(tmp_path: Path) -> None:
    """The test's own interpreter has the embedded llama.cpp."""
    pytest.importorskip("xllamacpp")
    looked = look(planning(tmp_path, imagine("1xrtx-4090"), "gguf"), answered_here=True)
    assert looked.machine.imagined
    assert looked.install is not None
    assert looked.install.engine == "llamacpp"


@pytest.mark.parametrize("verb", ["plan", "preflight"])
def test_plan_and_preflight_choose_alike(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder with a config alone, for a machine that is not there: both say which engine they took."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64}))
    run([verb, str(tmp_path), "--gpu", "1xrtx-4090", "-o", "json"])
    assert '"engine-assumed"' in capsys.readouterr().out


def test_a_preset_that_was_not_fetched_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run(["plan", "demo", "--gpu", "1xrtx-4090"]) != Exit.OK
    said = capsys.readouterr().err
    assert "not-fetched" in said
    assert "firstlight fetch demo" in said


def test_a_preset_that_is_here_is_looked_at(demo_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is what the engine is given, and its name is the model's own."""
    here = tmp_path / "firstlight" / "models" / "demo"
    here.mkdir(parents=True)
    shutil.copy(demo_gguf, here / demo_gguf.name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    looked = look(Planning(intent=Intent(model="demo"), gpu="1xrtx-4090"))
    assert (looked.checkpoint.ref, looked.checkpoint.name) == ("demo", "HuggingFaceTB/SmolLM2-135M-Instruct")
    assert looked.checkpoint.path == str(here / demo_gguf.name)
    assert looked.engine.name == "llamacpp"


def test_errors_of_looking_are_ours() -> None:
    with pytest.raises(FirstlightError):
        look(Planning(intent=Intent(model="/nowhere/model"), gpu="1xrtx-4090"))
