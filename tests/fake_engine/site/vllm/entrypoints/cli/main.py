"""`python -m vllm.entrypoints.cli.main serve MODEL …` with the script that FAKE_ENGINE_SCRIPT names."""

import os
import sys

PROGRAM = os.path.join(os.path.dirname(__file__), *[os.pardir] * 4, "fake_engine.py")
os.execv(sys.executable, [sys.executable, os.path.abspath(PROGRAM), *sys.argv[1:]])
