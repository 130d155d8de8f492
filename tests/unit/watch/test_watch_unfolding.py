"""Tracebacks that were folded into one line come back as lines; nothing else is touched."""

from firstlight.engines.splitting import Splitter, unfolded

FRAMES = (
    'File "/opt/env/vllm/core.py", line 3, in run return self.step() '
    'File "/opt/env/vllm/step.py", line 9, in step raise ValueError("no nest")'
)
FOLDED = f"kestrel said: Traceback (most recent call last): {FRAMES} ValueError: no nest for the kestrel"


def test_frames_code_and_what_was_raised_are_lines_of_their_own() -> None:
    assert unfolded(FOLDED) == [
        "kestrel said: Traceback (most recent call last):",
        '  File "/opt/env/vllm/core.py", line 3, in run',
        "    return self.step()",
        '  File "/opt/env/vllm/step.py", line 9, in step',
        '    raise ValueError("no nest")',
        "ValueError: no nest for the kestrel",
    ]


def test_a_process_that_names_itself_on_each_line_is_split_there() -> None:
    name = "(Kestrel pid=7) "
    lines = ["Traceback (most recent call last):", 'File "a.py", line 1, in a', "b()", 'File "b.py", line 2, in b', "c()", "KeyError: 'c'"]
    assert unfolded(name + f" {name}".join(lines)) == [name + line for line in lines]


def test_one_frame_or_none_is_left_as_it_is() -> None:
    line = 'the word Traceback (most recent call last) and File "x.py", line 1, in x and more of it'
    assert unfolded(line) == [line]


def test_the_pieces_of_a_folded_line_have_its_number() -> None:
    pieces = Splitter().feed(f"before\n{FOLDED + ' ' * 200}\nafter\n".encode())
    assert {number for number, piece in pieces if "File" in piece or "nest" in piece} == {2}
    assert (pieces[0], pieces[-1]) == ((1, "before"), (3, "after"))
