# The two commands: `make demo` and `make test`. Everything is installed into .venv and .engines, nothing outside this folder but XDG places.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
VLLM := 0.32.0
ENGINES := $(CURDIR)/.engines
ENGINE := FIRSTLIGHT_ENGINE_PYTHON=$(ENGINES)/vllm-$(VLLM)-cpu/bin/python

.PHONY: demo test test-hosts test-slow test-engines engines lint bench clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

demo: .venv/embedded ## a real chat model, from nothing to a verified endpoint
	$(BIN)/firstlight up demo

test: .venv/test ## the tests, llama.cpp included
	$(BIN)/firstlight fetch demo
	FIRSTLIGHT_TEST_STRICT=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not vllm and not slow and not llamacpp"
	FIRSTLIGHT_TEST_STRICT=1 $(BIN)/python -m pytest -m "llamacpp and not slow"

test-engines: .venv/test engines ## the tests on a real vLLM (CPU build)
	$(BIN)/firstlight fetch demo
	$(ENGINE) FIRSTLIGHT_TEST_STRICT=1 $(BIN)/python -m pytest -m "vllm and not slow"

test-hosts: .venv/test ## services in a real systemd, other hosts through a real sshd
	$(BIN)/firstlight fetch demo
	FIRSTLIGHT_TEST_STRICT=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m hosts

test-slow: .venv/test engines ## damaged models, kills, more of vLLM
	$(BIN)/firstlight fetch demo
	$(ENGINE) FIRSTLIGHT_TEST_STRICT=1 $(BIN)/python -m pytest -m "slow and not hosts"

engines: .venv/embedded ## vLLM's CPU build in an environment of its own, and the Python files of three releases
	$(BIN)/firstlight engines install vllm@$(VLLM) --cpu --to $(ENGINES)/vllm-$(VLLM)-cpu --yes
	$(BIN)/firstlight engines source vllm@0.16.0 vllm@0.24.0 vllm@0.33.0

lint: .venv/test ## formatting, types, and who may import whom
	$(BIN)/ruff check src tests bench tools
	$(BIN)/ruff format --check src tests bench tools
	$(BIN)/mypy
	$(BIN)/lint-imports

clean: ## removes .venv and .engines
	rm -rf .venv .engines

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/embedded: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) install --quiet -c constraints.txt -e '.[embedded]'
	@touch $@

.venv/test: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) install --quiet -c constraints.txt -e '.[embedded,test,lint]'
	@touch $@ .venv/embedded
