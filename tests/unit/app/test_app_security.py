"""Keys that are made, Python that comes with a model: asked for, shown with its hashes, kept on record."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from firstlight.app.consent import Consent
from firstlight.app.emitter import Emitter
from firstlight.app.keys import generated_key, key_path
from firstlight.app.remotecode import RECORD, consent_to_remote_code, refuse_changed_code
from firstlight.app.session import Session, UpOptions
from firstlight.app.store import RunStore
from firstlight.core.checkpoint import Checkpoint, RemoteCode
from firstlight.core.errors import ConsentError, FirstlightError, UsageError
from firstlight.core.intent import Intent
from firstlight.core.plan import Candidate, EngineRef, PlanSet
from firstlight.engines.command import refuse_secret_variables, refuse_secrets
from firstlight.probe.local import LocalHost

CODE = b"class Model: ...\n"


def test_a_key_is_made_once_for_its_owner_alone() -> None:
    path = Path(generated_key("My Model"))
    key = path.read_text().strip()
    assert path == key_path("My Model")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert len(key) >= 43, "256 bits"
    assert Path(generated_key("My Model")).read_text().strip() == key


def session(folder: Path, *, args: list[str], consent: Consent, said: bool | None = None) -> Session:
    folder.mkdir(exist_ok=True)
    (folder / "modeling_x.py").write_bytes(CODE)
    (folder / "config.json").write_text(json.dumps({"auto_map": {"AutoModel": "modeling_x.Model"}}))
    best = Candidate(engine=EngineRef(name="vllm"), args=args)
    made = Session(
        intent=Intent(model=str(folder), trust_remote_code=said),
        options=UpOptions(),
        host=LocalHost(),
        adapters=[],
        store=RunStore(),
        consent=consent,
        emitter=Emitter(None, []),
        name="x",
    )
    code = RemoteCode(needed=True, files=["modeling_x.py"])
    made.checkpoint = Checkpoint(ref=str(folder), path=str(folder), format="safetensors", trust_remote_code=code)
    made.plan_set = PlanSet(verdict="fits", model="x", machine="m", best=best)
    made.folder = made.store.create(name="x", model="x", host="local")
    return made


def test_code_of_the_model_is_not_run_without_a_yes_and_is_shown_with_its_hash(tmp_path: Path) -> None:
    asked = session(tmp_path / "m", args=["--trust-remote-code"], consent=Consent())
    with pytest.raises(ConsentError) as caught:
        consent_to_remote_code(asked)
    assert f"modeling_x.py  sha256 {hashlib.sha256(CODE).hexdigest()}" in caught.value.evidence
    assert any(line.startswith("pinned by") for line in caught.value.evidence)
    assert "--allow remote-code" in str(caught.value.hint)


def test_a_yes_by_name_or_by_the_flag_is_enough_and_leaves_a_record(tmp_path: Path) -> None:
    for consent, said in ((Consent(allowed=frozenset({"remote-code"})), None), (Consent(), True)):
        allowed = session(tmp_path / "m", args=["--trust-remote-code"], consent=consent, said=said)
        consent_to_remote_code(allowed)
        assert allowed.folder is not None
        assert "modeling_x.py  sha256" in (allowed.folder.path / "remote-code.txt").read_text()


def test_every_python_file_is_shown_and_code_of_another_repository_needs_a_yes_of_its_own(tmp_path: Path) -> None:
    given = session(tmp_path / "m", args=["--trust_remote_code"], consent=Consent(), said=True)
    (tmp_path / "m" / "helper.py").write_bytes(b"import os\n")
    consent_to_remote_code(given)
    assert given.folder is not None
    assert "helper.py  sha256" in (given.folder.path / RECORD).read_text(), "what auto_map names may import it"
    (tmp_path / "m" / "processor_config.json").write_text(json.dumps({"auto_map": {"AutoProcessor": "org/other--processing.X"}}))
    with pytest.raises(ConsentError) as caught:
        consent_to_remote_code(given)
    assert "--allow unpinned-code" in str(caught.value.hint)
    assert "not pinned: Python of the repository org/other" in caught.value.evidence
    given.consent = Consent(allowed=frozenset({"unpinned-code"}))
    consent_to_remote_code(given)


def test_a_service_runs_the_code_that_was_agreed_to_and_no_other(tmp_path: Path) -> None:
    given = session(tmp_path / "m", args=["--trust-remote-code"], consent=Consent(), said=True)
    consent_to_remote_code(given)
    assert given.folder is not None
    record, model = given.folder.path / RECORD, tmp_path / "m"
    refuse_changed_code(record, str(model))
    for change, word in (((model / "modeling_x.py").write_text, "changed"), ((model / "new.py").write_text, "new")):
        change("evil = 1\n")
        with pytest.raises(FirstlightError) as refused:
            refuse_changed_code(record, str(model))
        assert (refused.value.code, refused.value.exit_code) == ("remote-code-changed", 4)
        assert any(e.endswith(word) for e in refused.value.evidence)
    refuse_changed_code(tmp_path / "no-such-record", str(model))


@pytest.mark.parametrize("word", ["--api-key", "--api_key=x", "--api-ke", "--hf-token", "--hf_to=x"])
def test_a_secret_among_the_engine_s_flags_is_refused_before_anything_is_written(word: str) -> None:
    with pytest.raises(UsageError) as refused:
        refuse_secrets([word, "hush"])
    assert refused.value.code == "secret-in-arguments"
    assert "hush" not in str(refused.value.evidence)
    refuse_secrets(["--api-server-count", "2", "--hf-overrides", "{}", "--api-key-file", "/k"])


def test_a_secret_variable_is_refused_and_a_tokenizer_s_is_not() -> None:
    for name in ("VLLM_API_KEY", "HF_TOKEN", "MY_SECRET"):
        with pytest.raises(UsageError, match="secret-in-environment"):
            refuse_secret_variables({name: "hush"})
    refuse_secret_variables({"TOKENIZERS_PARALLELISM": "false", "NCCL_DEBUG": "INFO"})


def test_a_plan_that_runs_no_such_code_asks_nothing(tmp_path: Path) -> None:
    consent_to_remote_code(session(tmp_path / "m", args=[], consent=Consent()))
    assert os.listdir(tmp_path) == ["m"]
