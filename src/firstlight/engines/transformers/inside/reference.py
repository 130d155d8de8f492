"""Next-token distributions of a model folder, by transformers on the CPU in float32. Runs alone, in an environment with torch.

    python reference.py FOLDER < prompts.json > rows.json

stdin: a JSON list of prompts. stdout: {rows: [{prompt_tokens, tokens, logprobs}], most likely first, ids: token ids of each prompt, without
those that a tokenizer puts in front}. Imports nothing of firstlight.
"""

import json
import sys
from typing import Any

TOP = 20


def rows(folder: str, prompts: list[str]) -> dict[str, list[Any]]:
    """Longest prompts first: one that a longer one begins with has been read already, and takes a row of what was computed for that."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    asked = [tokenizer(p).input_ids for p in prompts]
    read: list[tuple[list[int], Any]] = []
    found: list[Any] = [None] * len(prompts)
    for at in sorted(range(len(prompts)), key=lambda i: -len(asked[i])):
        ids = asked[at]
        logprobs = next((known for past, known in read if past[: len(ids)] == ids), None)
        if logprobs is None:
            with torch.no_grad():
                logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
            read.append((ids, logprobs))
        best = logprobs[len(ids) - 1].topk(TOP)
        tokens = [tokenizer.decode([i]) for i in best.indices.tolist()]
        found[at] = {"prompt_tokens": len(ids), "tokens": tokens, "logprobs": [round(v, 5) for v in best.values.tolist()]}
    return {"rows": found, "ids": [tokenizer(p, add_special_tokens=False).input_ids for p in prompts]}


if __name__ == "__main__":
    json.dump(rows(sys.argv[1], json.load(sys.stdin)), sys.stdout)
