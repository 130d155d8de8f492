"""Addresses and options as people give them: understood, or refused in words before anything is asked."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from corrupt.engines import free_port, process

from firstlight.app.cli.bench import command as bench
from firstlight.app.cli.verify import command as verify
from firstlight.app.endpoints import base_of
from firstlight.core.errors import Exit, FirstlightError, UsageError

SERVER = Path(__file__).with_name("verify_fluent.py")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    port = free_port()
    with process([sys.executable, str(SERVER), str(port)], port):
        yield f"127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("h:8000", "http://h:8000/v1"),
        ("http://h:8000", "http://h:8000/v1"),
        ("http://h:8000/", "http://h:8000/v1"),
        ("http://h:8000/v1/", "http://h:8000/v1"),
        ("https://h/some/path", "https://h/some/path/v1"),
        ("https://h/some/path/v1", "https://h/some/path/v1"),
        ("http://h:8000/v1/chat/completions", "http://h:8000/v1"),
        ("http://h:8000/v1/models", "http://h:8000/v1"),
        ("HTTP://h:8000#top", "http://h:8000/v1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_whatever_part_of_the_address_is_given_the_base_is_found(given: str, base: str) -> None:
    assert base_of(given) == base


@pytest.mark.parametrize(
    "given", ["http://user:secret@h/v1", "http://h/v1?key=secret", "ftp://h/v1", "http:///v1", "http://h:99999", "http://[::1"]
)
def test_addresses_that_are_none_or_carry_secrets_are_refused(given: str) -> None:
    with pytest.raises(UsageError) as e:
        base_of(given)
    assert e.value.code == "bad-url"
    assert "secret" not in e.value.message


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("--budget", "nan"), "bad-budget"),
        (("--accept", "nonsense"), "unknown-check"),
        (("--checks", "reference"), "no-reference"),
        (("--checks", " , "), "unknown-check"),
        (("--kind", "embedding", "--claim", "tools"), "option-needs"),
        (("--kind", "reward", "--against", __file__), "option-needs"),
        (("--save-reference", "/no/such/folder/x.json"), "file-unwritable"),
        (("--against", "/", "--engine-python", "/bin/true"), "reference-failed"),
        (("--against", "/", "--engine-python", "/no/such/python"), "reference-failed"),
    ],
)
def test_bad_options_of_verify_are_named(address: str, args: tuple[str, ...], code: str) -> None:
    assert _code(verify, address, *args) == code


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("--goodput", "ttft:soon"), "bad-goodput"),
        (("--tool", "vllm"), "vllm-bench-needs"),
        (("--engine-python", "/bin/true"), "option-needs"),
        (("--tokenizer", "/"), "option-needs"),
        (("--tool", "vllm", "--engine-python", "/bin/true", "--tokenizer", "/", "--force"), "vllm-bench-failed"),
    ],
)
def test_bad_options_of_bench_are_named(address: str, args: tuple[str, ...], code: str) -> None:
    assert _code(bench, address, *args) == code


def test_reports_that_are_not_there_are_named() -> None:
    assert _code(bench, "compare", "/no/such/a.json", "/no/such/b.json") == "file-unreadable"


def test_a_comparison_measures_nothing() -> None:
    assert _code(bench, "compare", "a.json", "b.json", "--force") == "option-needs"
    assert _code(bench, "compare", "a.json") == "compare-needs-two"


def test_a_claim_that_is_named_is_claimed_and_what_could_not_be_judged_does_not_pass(address: str) -> None:
    runner = CliRunner()
    assert runner.invoke(verify, [address, "--checks", "tools"], standalone_mode=False).return_value == Exit.OK
    nothing = runner.invoke(verify, [address, "--checks", "known-answers", "--kind", "embedding"], standalone_mode=False)
    assert nothing.return_value == Exit.VERIFICATION_FAILED
    assert "nothing could be judged" in nothing.output


def _code(command: Any, *args: str) -> str:
    result = CliRunner().invoke(command, list(args), standalone_mode=False)
    assert isinstance(result.exception, FirstlightError), (result.exception, result.output)
    return result.exception.code
