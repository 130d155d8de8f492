"""The caching allocator's arithmetic, checked on its own published rules; stubs that stand for exactly what is missing."""

import importlib
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstlight.engines.vllm.inside.asking import stubs
from firstlight.engines.vllm.inside.asking.memory import allocated
from firstlight.engines.vllm.inside.asking.predicates import PREDICATES

MIB = 1 << 20
sizes = st.lists(st.integers(1, 64 * MIB), max_size=40)


@pytest.mark.parametrize(
    ("tensors", "blocks"),
    [
        ([1], 512),  # rounded up to 512 bytes
        ([512, 512], 1024),  # both from one 2 MiB segment
        ([MIB], MIB),  # the rest of a small segment is always split off
        ([19 * MIB + MIB // 2], 20 * MIB),  # a rest of half a MiB is not worth keeping: it counts as allocated
        ([3 * MIB], 3 * MIB),  # 20 MiB segment, rest split off
        ([11 * MIB + 1], 12 * MIB),  # own segment in steps of 2 MiB, rest below 1 MiB stays with it
        ([0, 0], 0),
    ],
)
def test_blocks_are_those_of_the_caching_allocator(tensors: list[int], blocks: int) -> None:
    assert allocated(tensors) == blocks


def test_a_freed_rest_is_used_for_the_next_tensor_that_fits() -> None:
    assert allocated([3 * MIB, 17 * MIB]) == 20 * MIB
    assert allocated([3 * MIB, 16 * MIB + MIB // 2]) == 20 * MIB  # the rest of 0.5 MiB stays unsplit


@given(sizes)
def test_never_less_than_the_tensors_and_at_most_a_mebibyte_more_for_each(tensors: list[int]) -> None:
    found = allocated(tensors)
    assert sum(tensors) <= found <= sum(tensors) + len(tensors) * MIB
    assert found % 512 == 0


@given(sizes, st.integers(1, 64 * MIB))
def test_one_more_tensor_never_makes_it_smaller(tensors: list[int], one: int) -> None:
    assert allocated([*tensors, one]) >= allocated(tensors) + one


@pytest.fixture
def import_system() -> Iterator[None]:
    before, modules, version = list(sys.meta_path), set(sys.modules), importlib.metadata.version
    yield
    sys.meta_path[:] = before
    importlib.metadata.version = version
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_shipped_extensions_import_as_shells_and_unshipped_ones_stay_missing(import_system: None) -> None:
    stubs.install(["madeup/_C.abi3.so", "madeup/fa/_fa3_C.cpython-312-x86_64-linux-gnu.so"], ["madeup_kernels"], [])
    module = importlib.import_module("madeup_kernels.gemm")
    assert module.anything(3).more[1] is not None
    assert stubs.module_of("madeup/fa/_fa3_C.cpython-312-x86_64-linux-gnu.so") == "madeup.fa._fa3_C"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("madeup_other")


def test_a_stub_decorates_subclasses_and_compares_like_an_object() -> None:
    stub = stubs.Inert()

    def function() -> int:
        return 7

    assert stub.register(function) is function

    class Child(stub.Base):  # type: ignore[misc]
        pass

    assert Child.__mro__ == (Child, object)
    assert stub != stubs.Inert()
    assert list(stub) == []
    # A workspace's size that a kernel library would have named: computed with, compared, and never too small.
    assert isinstance(-(stub * 2 + 1) // 128, stubs.Inert)
    assert not stub > 4096
    assert not stub > 4096
    with pytest.raises(AttributeError):
        stub.__len__  # noqa: B018


def test_a_missing_dependency_is_stubbed_with_a_version_and_an_installed_one_is_left_alone(import_system: None) -> None:
    stubs.install([], [], ["Made-Up-Cache", "msgspec"])
    assert importlib.import_module("made_up_cache").Cache("x") is not None
    assert importlib.metadata.version("made-up-cache") == "99.0"
    assert importlib.import_module("msgspec").Struct.__module__.startswith("msgspec")
    assert importlib.metadata.version("msgspec") != "99.0"


@pytest.mark.parametrize(
    ("predicate", "yes", "no"),
    [
        ("cutlass_scaled_mm_supports_fp8", (89, 90, 120), (75, 80, 86)),
        ("cutlass_scaled_mm_supports_block_fp8", (90, 100, 120), (80, 89)),
        ("cutlass_scaled_mm_supports_fp4", (100, 103, 120, 121), (80, 90)),
        ("cutlass_group_gemm_supported", (90, 100), (89, 120)),
    ],
)
def test_predicates_of_compiled_code(predicate: str, yes: tuple[int, ...], no: tuple[int, ...]) -> None:
    assert all(PREDICATES[predicate](sm) for sm in yes)
    assert not any(PREDICATES[predicate](sm) for sm in no)
