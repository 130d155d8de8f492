"""Makes a tiny DeepSeek-V3-shaped folder: true MLA (latent 512 + rope 64), shared and routed experts, random weights, own tokenizer.

    VLLM_PYTHON make_tiny_mla.py OUT [--layers N] [--fp8-kv]

Runs in an environment that has torch, transformers and tokenizers. `--fp8-kv` adds what ModelOpt writes for an embedded FP8 KV cache
(config.json and hf_quant_config.json) while every weight stays bfloat16.
"""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, PreTrainedTokenizerFast

TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
PRODUCER = {"name": "modelopt", "version": "0.41.0"}


def tokenizer(folder: Path) -> None:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=["<s>", "</s>", "<pad>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator(["a small model says small words"] * 10, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def weights(folder: Path, layers: int) -> None:
    shape = DeepseekV3Config(
        num_hidden_layers=layers,
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_attention_heads=8,
        num_key_value_heads=8,
        kv_lora_rank=512,
        q_lora_rank=64,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        n_shared_experts=1,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    DeepseekV3ForCausalLM(shape).to(torch.bfloat16).save_pretrained(folder)


def finish(folder: Path, fp8_kv: bool) -> None:
    """The router's two keys that the engine reads and transformers leaves out, and the embedded KV dtype."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    if fp8_kv:
        scheme = {"dynamic": False, "num_bits": 8, "type": "float"}
        config["quantization_config"] = {
            "quant_method": "modelopt",
            "quant_algo": "FP8",
            "kv_cache_scheme": scheme,
            "ignore": ["*"],
            "producer": PRODUCER,
            "config_groups": {},
        }
        beside = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["*"]}
        (folder / "hf_quant_config.json").write_text(json.dumps({"producer": PRODUCER, "quantization": beside}))
    path.write_text(json.dumps(config, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--fp8-kv", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer(options.out)
    weights(options.out, options.layers)
    finish(options.out, options.fp8_kv)


if __name__ == "__main__":
    main()
