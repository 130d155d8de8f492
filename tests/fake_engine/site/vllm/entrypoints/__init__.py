"""Stands where vLLM would be, so that `python -m vllm.entrypoints.cli.main serve …` starts the fake engine."""
