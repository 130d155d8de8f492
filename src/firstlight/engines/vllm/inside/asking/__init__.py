"""Runs inside an engine's own environment and asks the engine about itself: no GPU memory, no weights, no network.

`main.py` reads a request as JSON on stdin and writes the answer as JSON on stdout. The files import one another relatively,
so the folder works from wherever it is copied to. Python 3.10 and later, because old engine environments have it.
"""
