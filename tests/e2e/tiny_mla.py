"""Writes a tiny, true DeepSeek-V3-shaped folder with random weights; run by the engine's Python, which has torch and transformers.

    python tiny_mla.py FOLDER

MLA with kv_lora_rank 512 and rope 64 (the sizes that attention kernels know), shared and routed experts, a tokenizer and a chat template
of its own, and an FP8 KV cache embedded in config.json and hf_quant_config.json as ModelOpt writes it.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, PreTrainedTokenizerFast

PRODUCER = {"name": "modelopt", "version": "0.41.0"}
TEXTS = ["the first light falls on the hills and the river", "one two three four five six seven eight nine ten"] * 8


def write_tokenizer(folder: Path) -> None:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=512, special_tokens=["<s>", "</s>", "<pad>"], initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    tokenizer.chat_template = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    tokenizer.save_pretrained(folder)


def write_model(folder: Path) -> None:
    torch.manual_seed(0)
    config = DeepseekV3Config(
        vocab_size=512, hidden_size=256, intermediate_size=512, moe_intermediate_size=128, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=8, n_shared_experts=1, n_routed_experts=8, num_experts_per_tok=2, n_group=1, topk_group=1,
        first_k_dense_replace=1, kv_lora_rank=512, q_lora_rank=64, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128,
        max_position_embeddings=4096, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    DeepseekV3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def embed_fp8_kv(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    # Without topk_method the engine makes no e_score_correction_bias, which the weights have.
    config |= {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    config["quantization_config"] = {
        "quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["*"], "producer": PRODUCER, "config_groups": {},
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    }  # fmt: skip
    path.write_text(json.dumps(config, indent=1))
    quantization = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["*"]}
    (folder / "hf_quant_config.json").write_text(json.dumps({"producer": PRODUCER, "quantization": quantization}, indent=1))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write_tokenizer(target)
    write_model(target)
    embed_fp8_kv(target)
