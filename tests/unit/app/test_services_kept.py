"""A service's own folder and name: what a kill, a bad name or a damaged record may not cost."""

from collections.abc import Callable
from pathlib import Path

import pytest

from firstlight.app.cli.service import command
from firstlight.app.services import find_service, installed_services, plain_name, replacing, services_folder
from firstlight.app.store import RunStore
from firstlight.core.errors import UsageError
from firstlight.deploy.systemd import UnitState


def fill(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / "service.json").write_text(text)

    return write


@pytest.fixture
def target() -> Path:
    folder = services_folder("user") / "kept"
    folder.mkdir(parents=True)
    (folder / "service.json").write_text("old")
    return folder


def text(target: Path) -> str:
    return (target / "service.json").read_text()


def test_a_new_version_takes_the_place_or_the_former_comes_back(target: Path) -> None:
    with replacing(target, fill("new")):
        assert text(target) == "new"
    with pytest.raises(RuntimeError), replacing(target, fill("worse")):
        raise RuntimeError("systemd refuses the unit")
    assert text(target) == "new"
    assert [p.name for p in target.parent.iterdir()] == ["kept"]


def test_killed_while_it_is_written_the_former_is_there(target: Path) -> None:
    def half(folder: Path) -> None:
        folder.mkdir()
        assert text(target) == "old", "it is there all the time"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"), replacing(target, half):
        pass
    assert text(target) == "old"


def test_what_a_kill_between_two_renames_left_is_put_right_by_the_next(target: Path) -> None:
    target.rename(target.with_name(".kept.former"))
    (target.with_name(".kept.new")).mkdir()
    with pytest.raises(RuntimeError), replacing(target, fill("new")):
        raise RuntimeError
    assert text(target) == "old"
    assert [p.name for p in target.parent.iterdir()] == ["kept"]


@pytest.mark.parametrize("name", ["", ".", "/", "日本", "ü", "--", "\n"])
def test_a_name_of_which_nothing_is_left_is_nobody_s(name: str) -> None:
    """All of these would have been the service `model`, for `uninstall`, too."""
    folder = services_folder("user") / "model"
    folder.mkdir(parents=True)
    (folder / "service.json").write_text("{}")
    for look in (lambda: plain_name(name), lambda: find_service(name, None)):
        with pytest.raises(UsageError) as e:
            look()
        assert e.value.code == "name-says-nothing"
    assert find_service("Model", None) == ("user", folder)


def test_one_damaged_record_hides_no_other(capsys: pytest.CaptureFixture[str], target: Path) -> None:
    good = target.with_name("good")
    good.mkdir()
    (good / "service.json").write_text('{"name":"good","scope":"user","run":"r-1","installed":0,"firstlight":"0","engine":"vllm"}')
    assert len(installed_services()) == 2
    command.main(["list"], standalone_mode=False)
    said = capsys.readouterr()
    assert "r-1" in said.out
    assert ("service-unreadable" in said.err, str(target) in said.err) == (True, True)


@pytest.mark.parametrize(
    ("active", "sub", "queued", "over"),
    [
        ("inactive", "dead", True, False),
        ("failed", "failed", True, False),
        ("inactive", "dead", False, True),
        ("failed", "failed", False, True),
        ("activating", "auto-restart", False, False),
        ("active", "running", False, False),
    ],
)
def test_a_unit_that_the_manager_has_not_come_to_is_not_over(active: str, sub: str, queued: bool, over: bool) -> None:
    """`systemctl start --no-block` returns before the job begins: for a moment the unit is as dead as one that will not come."""
    state = UnitState(unit="u", scope="user", loaded=True, active=active, sub=sub, queued=queued)
    assert state.over is over


def test_of_runs_that_began_in_one_second_the_later_one_is_the_newest() -> None:
    """A service that restarts at once, a refused start and the next: `logs NAME` means the one that came last."""
    store = RunStore()
    made = [store.create(name="kept", model="m", host="local").path.name for _ in range(12)]
    assert [f.path.name for f in store.folders()] == made[::-1]
    assert store.find("kept").path.name == made[-1]
