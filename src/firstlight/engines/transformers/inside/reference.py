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
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    plain = [tokenizer(p, add_special_tokens=False).input_ids for p in prompts]
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            logprobs = model(ids).logits[0, -1].log_softmax(-1)
        best = logprobs.topk(TOP)
        tokens = [tokenizer.decode([i]) for i in best.indices.tolist()]
        values = [round(v, 5) for v in best.values.tolist()]
        found.append({"prompt_tokens": ids.shape[1], "tokens": tokens, "logprobs": values})
    return {"rows": found, "ids": plain}


if __name__ == "__main__":
    json.dump(rows(sys.argv[1], json.load(sys.stdin)), sys.stdout)
