"""Another host for the tests: a real sshd on loopback."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "facts"))

from loopback_sshd import Sshd, running


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(scope="session")
def bare_sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A host with POSIX tools and no Python, as its PATH says."""
    tools = tmp_path_factory.mktemp("tools")
    for name in (
        "sh",
        "cat",
        "dd",
        "df",
        "find",
        "getconf",
        "grep",
        "head",
        "ls",
        "nproc",
        "printf",
        "readlink",
        "sed",
        "stat",
        "tail",
        "timeout",
        "tr",
        "uname",
        "wc",
    ):
        path = shutil.which(name)
        if path:
            (tools / name).symlink_to(path)
    only = f'ForceCommand PATH={tools}; export PATH; exec sh -c "$SSH_ORIGINAL_COMMAND"'
    with running(tmp_path_factory.mktemp("bare"), extra=only) as server:
        yield server


@pytest.fixture(scope="session")
def noisy_sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A login whose start files greet everybody, on both streams."""
    greet = r"printf 'Welcome\\nto the cluster\\nno newline at the end'; echo 'quota: 93 %' >&2"
    with running(tmp_path_factory.mktemp("noisy"), extra=f'ForceCommand {greet}; exec sh -c "$SSH_ORIGINAL_COMMAND"') as server:
        yield server
