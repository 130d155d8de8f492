"""Options of `up` and `rehearse` that cannot be meant are refused before anything is looked at."""

import pytest

from firstlight.app.group import run


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--gpus", "abc"], "bad-gpus"),
        (["--gpus", ""], "bad-gpus"),
        (["--gpus", "0,,1"], "bad-gpus"),
        (["--gpus", "0,0"], "bad-gpus"),
        (["--gpus", "-1"], "bad-gpus"),
        (["--gpus", "1_0"], "bad-gpus"),
        (["--env", "NAME"], "bad-env"),
        (["--env", "A\nB=x"], "bad-env"),
        (["--env", "=x"], "bad-env"),
    ],
)
@pytest.mark.parametrize("verb", ["up", "rehearse"])
def test_what_cannot_be_meant_is_refused(verb: str, words: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "/no/model", *words]) == 2
    assert f"error {code}: " in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_rehearsal_wants_time(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rehearse", "/no/model", "--patience", seconds]) == 2
    assert "error bad-patience: " in capsys.readouterr().err
