"""What a GPU holds after loading that the parameters do not explain: run by the engine's own Python, in forks of one import.

    ENGINE_PYTHON resident.py --results FILE.jsonl [--seconds 60] MODEL_FOLDER [MODEL_FOLDER ...] [-- --enforce-eager …]

Each fork starts vLLM in one process, stops right after the worker has loaded the (dummy) weights, and writes one JSON object: bytes that
the allocator counts as allocated since before the load, bytes of the module's tensors by storage (rounded as the allocator rounds them),
other tensors that live, and blocks of the allocator's snapshot that no tensor of Python owns (workspaces of libraries). All in bytes.
"""

import argparse
import gc
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROUND = 512  # bytes: what CUDA's caching allocator rounds a request to


def storages(tensors: list[Any]) -> dict[int, tuple[int, str]]:
    """Address of each CUDA storage -> (bytes as allocated, one tensor's shape and dtype)."""
    from torch._subclasses import FakeTensor

    found: dict[int, tuple[int, str]] = {}
    for tensor in tensors:
        if isinstance(tensor, FakeTensor):
            continue  # what the compiler traced with: it has no memory
        storage = tensor.untyped_storage()
        if tensor.is_cuda and storage.nbytes():
            size = -(-storage.nbytes() // ROUND) * ROUND
            found.setdefault(storage.data_ptr(), (size, f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"))
    return found


def of_module(model: Any) -> dict[int, tuple[int, str]]:
    """Parameters, buffers, and plain tensors that modules keep as attributes."""
    import torch

    kept = [*model.parameters(), *model.buffers()]
    for module in model.modules():
        kept += [value for value in vars(module).values() if isinstance(value, torch.Tensor)]
    return storages(kept)


def living() -> dict[int, tuple[int, str]]:
    import torch

    gc.collect()
    return storages([thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor)])


def blocks() -> dict[int, tuple[int, str]]:
    """Allocated blocks of the allocator: address -> (bytes, where they were asked for, when the snapshot has it)."""
    import torch

    found = {}
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                frames = [f"{Path(f['filename']).name}:{f['line']} {f['name']}" for f in block.get("frames", [])[:4]]
                found[block["address"]] = (block["size"], " < ".join(frames))
    return found


def tally(of: dict[int, tuple[int, str]]) -> dict[str, list[int]]:
    """What -> [bytes, how many], largest first, at most twenty."""
    total: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for size, what in of.values():
        total[what] += size
        count[what] += 1
    return {what: [size, count[what]] for what, size in total.most_common(20)}


def look(before: int, old: set[int], model: Any) -> dict[str, Any]:
    import torch

    module, alive, held = of_module(model), living(), blocks()
    others = {a: found for a, found in alive.items() if a not in module and a not in old}
    unowned = {a: found for a, found in held.items() if a not in module and a not in alive and a not in old}
    return {
        "allocated": torch.cuda.memory_allocated() - before,
        "module": sum(size for size, _ in module.values()),
        "module_blocks": sum(size for a, (size, _) in held.items() if a in module),
        "other_tensors": tally(others),
        "unowned_blocks": tally(unowned),
    }


def watch_loading(tell: Any) -> None:
    """Puts itself around the worker's load."""
    import torch
    from vllm.v1.worker.gpu_worker import Worker

    load = Worker.load_model

    def loading(self: Any, *args: Any, **options: Any) -> None:
        torch.cuda.memory._record_memory_history(max_entries=1_000_000)
        before, old = torch.cuda.memory_allocated(), set(blocks())
        load(self, *args, **options)
        tell(look(before, old, self.model_runner.model))
        os._exit(0)  # nothing after the load is wanted

    Worker.load_model = loading


def one(folder: Path, options: list[str], results: Path) -> None:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.llm_engine import LLMEngine

    def tell(found: dict[str, Any]) -> None:
        with results.open("a") as out:
            out.write(json.dumps({"model": folder.name, "args": options, **found}) + "\n")

    watch_loading(tell)
    words = ["--model", str(folder), "--load-format", "dummy", *options]
    args = EngineArgs.from_cli_args(EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(words))
    LLMEngine.from_engine_args(args)


def main() -> None:
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("folders", type=Path, nargs="+")
    given, options = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import vllm.v1.engine.llm_engine
    import vllm.v1.worker.gpu_worker  # noqa: F401 - imported once, for all forks

    for folder in given.folders:
        began, pid = time.time(), os.fork()
        if pid == 0:
            one(folder, options, given.results)
            os._exit(1)  # it ended without having loaded
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.time() - began > given.seconds:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
                break
            time.sleep(0.2)
        print(f"{folder.name}: {time.time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
