"""What a line of code raises, as it would have been printed."""

import pytest

from firstlight.diagnose.messages import raising


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('raise ValueError("no nest")', "ValueError: no nest"),
        ("raise torch.cuda.KestrelError('too high', height)", "torch.cuda.KestrelError: too high"),
        ('raise RuntimeError(f"{name} has no nest")', "RuntimeError: … has no nest"),
        ('raise RuntimeError("{name} has no nest".format(name=x))', "RuntimeError: {name} has no nest"),
        ("raise ValueError(", "ValueError"),
        ("raise ValueError(message)", "ValueError"),
        ("raise error", None),
        ("raise", None),
        ("return nest", None),
    ],
)
def test_what_a_line_raises(source: str, said: str | None) -> None:
    assert raising(source) == said
