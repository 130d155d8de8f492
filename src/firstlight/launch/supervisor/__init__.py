"""One supervisor process per run: starts the engine, sees it die, ends it, proves that nothing is left.

Standard library only, Python 3.9 and later, relative imports only: the folder is packed into one `supervisor.pyz` beside the run, so
that a host needs nothing but Python, and a run keeps its own supervisor when firstlight is upgraded.
"""
