"""The pages say what the code does: the example adapter works, every event and file is named."""

import json
import re
from collections import Counter
from pathlib import Path

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.intent import Intent
from firstlight.core.machine import EngineInstall
from firstlight.core.plan import Candidate, EngineRef
from firstlight.core.ports import EngineAdapter

ROOT = Path(__file__).parents[3]
SUPERVISOR = ROOT / "src" / "firstlight" / "launch" / "supervisor"


def test_the_example_adapter_is_one() -> None:
    page = (ROOT / "docs" / "extend.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    namespace: dict[str, object] = {}
    exec(compile(code, "extend.md", "exec"), namespace)
    adapter = namespace["adapter"]
    assert isinstance(adapter, EngineAdapter)
    install = adapter.read_install("/env/bin/python", '{"version": "1.2"}')
    assert install == EngineInstall(engine="myengine", version="1.2", python="/env/bin/python")
    assert adapter.read_install("/env/bin/python", "nonsense") is None
    spec = adapter.launch(
        candidate=Candidate(engine=EngineRef(name="myengine"), args=["--x"]),
        checkpoint=Checkpoint(ref="m", format="safetensors"),
        intent=Intent(model="m", extra_args=["--mine"]),
        install=install,
        model_path="/m",
        served_name="m",
        port=1,
    )
    assert adapter.command(spec) == "/env/bin/python -m myengine --model /m --name m --port 1 --x --mine"


def test_every_event_is_named_on_the_page() -> None:
    sources = "".join(p.read_text() for p in SUPERVISOR.glob("*.py"))
    emitted = set(re.findall(r'\.event\(\s*"([a-z-]+)"', sources)) | {"engine-adopted", "healthy", "unhealthy", "paused", "continued"}
    page = (ROOT / "docs" / "launch.md").read_text()
    assert {kind for kind in emitted if f"`{kind}`" not in page} == set()


def test_the_page_tells_as_many_faults_as_the_results_have_and_none_lost_anything() -> None:
    rows = json.loads((ROOT / "bench" / "results" / "faults.json").read_text())["rows"]
    page = (ROOT / "docs" / "launch.md").read_text()
    count = Counter(row["engine"] for row in rows)
    told = f"{len(rows)} faults ({count['fake']} on the fake engine"
    assert told in page
    assert f"{count['llamacpp']} on llama.cpp; {count['vllm']} on vLLM's CPU build" in page
    assert [row["fault"] for row in rows if row["lost"] or not row["as_expected"]] == []


def test_the_supervisor_needs_nothing_but_the_standard_library() -> None:
    """Relative imports and the standard library: it is shipped to hosts that have only Python."""
    import sys

    for path in SUPERVISOR.glob("*.py"):
        for name in re.findall(r"^\s*(?:from|import) ([\w.]+)", path.read_text(), re.M):
            assert name.startswith(".") or name.split(".")[0] in sys.stdlib_module_names, f"{path.name}: {name}"
