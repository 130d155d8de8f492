"""What one `up` learned by failing, the next one begins with; it is shown, gives way, and can be forgotten."""

import json
import random
from pathlib import Path

from e2e_runner import FAKE_PYTHON, Firstlight, run_folder

SCRIPT = {"FAKE_ENGINE_SCRIPT": "context-too-long"}


def up(firstlight: Firstlight, model: Path, *more: str) -> tuple[str, int, int]:
    """(what was said, attempts, context) of an `up` that is ended again."""
    words = ("up", str(model), "--engine", "vllm", "--engine-python", str(FAKE_PYTHON), "--name", "tiny", "--skip", "verify")
    port = str(random.randrange(20000, 30000))  # its own: a port taken by a test beside it would be another attempt
    served = firstlight(*words, "--skip", "bench", "--port", port, *more, env=SCRIPT)
    assert served.returncode == 0, served.stderr
    run = firstlight.runs()[0]
    firstlight("down", "tiny")
    plan = json.loads((run_folder(run) / "plan.json").read_text())
    return served.stderr, run["attempt"], plan["best"]["max_model_len"]


def test_a_healed_start_is_known_to_the_next_and_can_be_forgotten(firstlight: Firstlight, llama_folder: Path) -> None:
    said, attempts, context = up(firstlight, llama_folder)
    assert (attempts, context) == (2, 4096)
    assert "firstlight knowledge forget" in said
    (lesson,) = firstlight.json("knowledge", "list")["items"]
    assert [(c["field"], c["value"]) for c in lesson["constraints"]] == [("max_model_len", 4096)]
    assert lesson["tried"] == {"max_model_len": 8192}
    assert "max_model_len == 4096 (was 8192)" in firstlight("knowledge", "list").stdout

    said, attempts, context = up(firstlight, llama_folder)
    assert (attempts, context) == (1, 4096)
    assert "known here: max_model_len == 4096" in said
    assert lesson["run"] in said

    assert up(firstlight, llama_folder, "--max-model-len", "2048")[1:] == (1, 2048)  # below the limit: the user's
    assert up(firstlight, llama_folder, "--max-model-len", "8192")[1:] == (1, 4096)  # what failed then
    assert up(firstlight, llama_folder, "--", "--max-model-len", "6000")[1:] == (1, 4096)  # beyond the limit that was found

    assert firstlight("knowledge", "forget", lesson["id"][:6]).returncode == 0
    assert firstlight.json("knowledge", "list")["items"] == []
    assert up(firstlight, llama_folder)[1:] == (2, 4096)


def test_it_is_knowledge_of_these_files_only(firstlight: Firstlight, llama_folder: Path) -> None:
    assert up(firstlight, llama_folder)[1] == 2
    config = json.loads((llama_folder / "config.json").read_text())
    (llama_folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 16384}))
    assert up(firstlight, llama_folder)[1] == 2
    assert len(firstlight.json("knowledge", "list")["items"]) == 2
    assert firstlight("knowledge", "forget").returncode == 2
    assert firstlight("knowledge", "forget", "zz").returncode == 2
    assert firstlight("knowledge", "forget", "--all").returncode == 0
