"""`--host` on every verb: it works there, it narrows runs, or it is refused with a reason; and the docs have a line for each."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from firstlight.app.commands import OF_RUN, PARTS, VERBS
from firstlight.app.group import firstlight, run
from firstlight.app.store import RunStore
from firstlight.app.where import chosen_host

DOCS = Path(__file__).parents[3] / "docs" / "hosts.md"


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for part, below in command.commands.items():
            yield from leaves(below, f"{name} {part}")
    else:
        yield name, command


def every_verb() -> list[tuple[str, click.Command]]:
    context = click.Context(firstlight)
    commands = [(name, firstlight.get_command(context, name)) for name in VERBS]
    return [leaf for name, command in commands if command is not None for leaf in leaves(command, name)]


@pytest.mark.parametrize(("name", "command"), every_verb(), ids=lambda v: v if isinstance(v, str) else "")
def test_every_verb_takes_the_flag(name: str, command: click.Command) -> None:
    assert any("--host" in p.opts for p in command.params), f"{name} has no --host, and no reason why"


def refusing() -> list[str]:
    rows = [(name, PARTS.get(name, VERBS[name.split()[0]].host)) for name, _ in every_verb()]
    return [name for name, policy in rows if policy not in (None, OF_RUN)]


@pytest.mark.parametrize("name", refusing())
def test_where_it_makes_no_sense_it_is_refused_with_the_reason(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*name.split(), "--host", "ssh://gpu1"]) == 2
    said = capsys.readouterr().err
    assert "host-makes-no-sense" in said
    assert f"`{name}`" in said


def test_the_docs_have_a_line_for_every_verb() -> None:
    documented = set(re.findall(r"`([a-z ]+)`", DOCS.read_text()))
    assert [name for name, _ in every_verb() if name not in documented and name.split()[0] not in documented] == []


def test_runs_are_found_by_their_host(capsys: pytest.CaptureFixture[str]) -> None:
    store = RunStore()
    for host in ("local", "ssh://gpu1", "ssh://gpu2"):
        store.create(name="same", model="m", host=host)
    for host in ("local", "ssh://gpu1", "ssh://gpu2/"):
        assert run(["get", "events", "same", "--host", host]) == 0
    capsys.readouterr()
    assert run(["get", "events", "same", "--host", "ssh://gpu3"]) == 2
    said = capsys.readouterr().err
    assert "run-not-found" in said
    assert "for runs on ssh://gpu3" in said
    assert run(["get", "events", "same", "--host", "gpu3"]) == 2, "a name that is no host"
    assert "unknown-host" in capsys.readouterr().err
    assert chosen_host() is None, "the choice ends with its command"
    assert len(store.scan()[0]) == 3
