"""The parts without a network: selection, journals, segments, space, rates, advice."""

from email.message import Message
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstlight.catalog.loaders import Place, advise, load_seconds, loaders
from firstlight.catalog.presets import find_preset, presets
from firstlight.core.errors import FirstlightError, InputError
from firstlight.core.fetch import Space
from firstlight.fetch.job import FileJob, tile
from firstlight.fetch.journal import Journal, merge, read_ranges
from firstlight.fetch.limit import backoff_seconds
from firstlight.fetch.meter import expected_seconds, remember_rate
from firstlight.fetch.models import CachedModel
from firstlight.fetch.pip import read_config
from firstlight.fetch.room import proposals
from firstlight.fetch.select import quantization, select
from firstlight.fetch.source import RemoteFile, safe_name
from firstlight.fetch.sources.http import content_range, retry_after
from firstlight.fetch.sources.hub import split_ref
from firstlight.fetch.sources.wheel import read_index
from firstlight.fetch.space import filesystem_of, parse_lfs_quota, parse_quota, space_findings
from firstlight.fetch.storage import read_rate, storage_kind

RANGES = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=12)


def files(*names: str, size: int = 10) -> list[RemoteFile]:
    return [RemoteFile(name=n, locator=n, size=size) for n in names]


def kept(*names: str, variant: str | None = None) -> list[str]:
    return [f.name for f in select(files(*names), variant=variant)[0]]


class TestSelect:
    def test_safetensors_win_over_pickles_and_other_runtimes(self) -> None:
        names = kept("config.json", "model.safetensors", "pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "onnx/model.onnx",
                     "original/consolidated.00.pth", "README.md", "tokenizer.model", "LICENSE")  # fmt: skip
        assert names == ["config.json", "model.safetensors", "tokenizer.model", "LICENSE"]

    def test_pickles_are_kept_when_there_is_nothing_else(self) -> None:
        assert kept("config.json", "pytorch_model.bin", "training_args.bin") == ["config.json", "pytorch_model.bin"]

    def test_mistrals_second_copy_is_left(self) -> None:
        assert "consolidated.safetensors" not in kept("model-00001-of-00002.safetensors", "consolidated.safetensors")
        assert kept("consolidated.safetensors", "params.json") == ["consolidated.safetensors", "params.json"]

    def test_another_precision_is_left(self) -> None:
        assert kept("model.safetensors", "model.fp16.safetensors") == ["model.safetensors"]

    def test_code_templates_and_quantization_configs_stay(self) -> None:
        names = ["modeling_x.py", "chat_template.jinja", "hf_quant_config.json", "model.safetensors"]
        assert kept(*names) == names

    def test_one_quantization_with_all_its_parts_and_the_16_bit_projector(self) -> None:
        names = ["M-Q4_K_M-00001-of-00002.gguf", "M-Q4_K_M-00002-of-00002.gguf", "M-Q8_0.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"]
        assert kept(*names, variant="q4_k_m") == [*names[:2], "mmproj-F16.gguf"]

    def test_which_quantization_must_be_said(self) -> None:
        with pytest.raises(InputError) as e:
            kept("M-Q4_K_M.gguf", "M-Q8_0.gguf")
        assert (e.value.code, e.value.evidence) == ("quantization-needed", ("Q4_K_M: 10 B", "Q8_0: 10 B"))
        with pytest.raises(InputError) as e:
            kept("M-Q4_K_M.gguf", "M-Q8_0.gguf", variant="Q2_K")
        assert e.value.code == "quantization-unknown"
        assert kept("M-Q4_K_M.gguf", "config.json") == ["M-Q4_K_M.gguf", "config.json"]

    def test_include_means_exactly_these(self) -> None:
        chosen, left = select(files("a.json", "b.bin", "c/d.txt"), include=["*.bin", "c/"], exclude=["*.txt"])
        assert [f.name for f in chosen] == ["b.bin"]
        assert {f.name: f.because for f in left} == {"a.json": "not asked for", "c/d.txt": "excluded by you"}

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
            ("Model-7B-Q4_K_M-00001-of-00002.gguf", "Q4_K_M"),
            ("UD-Q2_K_XL/Kimi-UD-Q2_K_XL-00001-of-00008.gguf", "UD-Q2_K_XL"),
            ("model-IQ3_XXS.gguf", "IQ3_XXS"),
            ("BF16/model.gguf", "BF16"),
            ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
            ("model.gguf", None),
        ],
    )
    def test_quantization_names(self, name: str, kind: str | None) -> None:
        assert quantization(name) == kind


class TestJournal:
    @given(RANGES)
    def test_merge_covers_the_same_bytes_without_overlap(self, ranges: list[tuple[int, int]]) -> None:
        merged = merge(ranges)
        assert {i for a, b in merged for i in range(a, b)} == {i for a, b in ranges for i in range(a, b)}
        assert all(a[1] < b[0] for a, b in pairwise(merged))

    @given(RANGES, st.integers(0, 150))
    def test_tiles_cover_the_file_once(self, ranges: list[tuple[int, int]], size: int) -> None:
        segments = tile(merge(ranges), size)
        assert segments[0].start == 0
        assert segments[-1].end == size
        assert all(a.end == b.start for a, b in pairwise(segments))
        have = {i for a, b in ranges for i in range(a, min(b, size))}
        assert {i for s in segments for i in range(s.start, s.at)} == have

    @given(st.integers(0, 400))
    def test_cut_at_any_byte_it_never_claims_more_than_was_written(self, tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
        part = tmp_path_factory.mktemp("j") / "x.part"
        part.write_bytes(b"a" * 1000)
        journal = Journal(part, "id", 1000)
        for start in (0, 100, 500):
            journal.record(start, start + 99)
        journal.close()
        whole = journal.path.read_bytes()
        journal.path.write_bytes(whole[:cut])
        claimed = {i for a, b in read_ranges(journal.path, {"identity": "id", "size": 1000}) for i in range(a, b)}
        assert claimed <= {i for s in (0, 100, 500) for i in range(s, s + 99)}

    def test_other_bytes_begin_anew(self, tmp_path: Path) -> None:
        part = tmp_path / "x.part"
        first = Journal(part, "one", 100)
        part.write_bytes(b"a" * 100)
        first.record(0, 50)
        first.close()
        assert Journal(part, "one", 100).ranges == [(0, 50)]
        assert Journal(part, "two", 100).ranges == []
        assert not part.exists()

    def test_a_part_that_lost_its_end_claims_less(self, tmp_path: Path) -> None:
        part = tmp_path / "x.part"
        first = Journal(part, "one", 100)
        part.write_bytes(b"a" * 30)
        first.record(0, 50)
        first.close()
        assert Journal(part, "one", 100).ranges == [(0, 30)]


def test_a_resumed_file_is_hashed_from_the_disk(tmp_path: Path) -> None:
    import hashlib

    data = bytes(range(256)) * 100
    file = RemoteFile(name="x", locator="x", size=len(data), sha256=hashlib.sha256(data).hexdigest())
    for pieces in (range(0, 10_000, 1000), range(10_000, len(data), 1000)):
        job = FileJob(file, tmp_path / "x.part")
        job.open()
        segment = job.claim()
        assert segment is not None
        assert segment.at == pieces[0]
        for at in pieces:
            job.write(segment, memoryview(data[at : at + 1000]))
        job.release(segment)
        complete, digest = job.complete, job.digest() if job.complete else ""
        job.close()
    assert complete
    assert digest == file.sha256


class TestSpace:
    MOUNTS = (
        "21 1 254:0 / / rw - ext4 /dev/vda rw\n"
        "30 21 0:40 / /data rw - nfs4 server:/x rw\n"
        "31 30 0:41 / /data/fast\\040disk rw - xfs /dev/nvme0n1 rw\n"
    )

    @pytest.mark.parametrize(
        ("path", "kind"), [("/home", "ext4"), ("/data/m", "nfs4"), ("/data/fast disk/m", "xfs"), ("/database", "ext4")]
    )
    def test_the_longest_mount_point_wins(self, path: str, kind: str) -> None:
        assert filesystem_of(path, self.MOUNTS) == kind

    def test_quotas(self) -> None:
        text = "Disk quotas for user me (uid 1000):\n Filesystem blocks quota limit grace\n/dev/sda1 1000* 900 1500 7days 4 0 0\n"
        assert parse_quota(text, "/dev/sda1") == 500 * 1024
        assert parse_quota(text, "/dev/sdb1") is None
        assert parse_lfs_quota("/lustre 100 0 1100 - 5 0 0 -\n") == 1000 * 1024
        assert parse_lfs_quota("/lustre 100 0 0 - 5 0 0 -\n") is None
        assert parse_lfs_quota("") is None

    def test_the_message_names_the_place_and_the_way_out(self) -> None:
        space = Space(path="/models", filesystem="nfs4", available_bytes=10 << 30, quota_bytes=10 << 30, persistent=True)
        (finding,) = space_findings(space, 540 << 30)
        assert finding.code == "no-space"
        assert finding.evidence[1] == "available 10.00 GiB at /models (nfs4)"
        assert "firstlight models" in (finding.hint or "")
        assert space_findings(space, 1 << 30) == []

    def test_unknown_space_is_not_a_blocker(self) -> None:
        assert space_findings(Space(path="/x"), 1 << 40) == []


def test_proposals_are_the_longest_unused_until_there_is_room() -> None:
    models = [
        CachedModel(name=n, place="hub", path=n, bytes=b << 30, last_used=u)
        for n, b, u in (("a", 400, 50.0), ("b", 10, 10.0), ("c", 5, 99.0))
    ]
    assert proposals(models, 100 << 30, 100.0) == [
        "could go: b, 10.00 GiB, last used 90 s ago",
        "could go: a, 400.00 GiB, last used 50 s ago",
    ]
    assert proposals(models, 0, 100.0) == []


class TestPip:
    def test_the_environment_wins(self) -> None:
        text = ":env:.index-url='http://a/simple'\nglobal.index-url='http://b/simple'\nglobal.extra-index-url='http://c http://d'\n"
        assert read_config(text).indexes == ["http://a/simple", "http://c", "http://d"]

    def test_pip_s_own_index_is_asked_for_where_none_is_named(self) -> None:
        assert read_config("").indexes == [""]
        assert read_config("global.no-index='true'\nglobal.find-links='/w file:///v http://x'").find_links == ["/w", "/v"]
        assert read_config("global.no-index='true'").indexes == []

    def test_both_kinds_of_index_pages(self) -> None:
        name = "tiny_model-1.0-py3-none-any.whl"
        page = f'<a href="../../f/{name}#sha256=ab&amp;x">{name}</a><a href="t.tar.gz">t.tar.gz</a>'
        (wheel,) = read_index(page, "http://h/simple/tiny-model/")
        assert wheel.locator == "http://h/f/tiny_model-1.0-py3-none-any.whl"
        text = '{"files":[{"filename":"a-1-py3-none-any.whl","url":"/a.whl","hashes":{"sha256":"cd"},"size":3}]}'
        (wheel,) = read_index(text, "http://h/simple/a/")
        assert (wheel.locator, wheel.sha256, wheel.size) == ("http://h/a.whl", "cd", 3)


class TestAdvice:
    WEIGHTS = 540 << 30

    def of(self, kind: str, version: str | None = "0.32.0", rate: float | None = None, memory: int = 1 << 40, **more: object):  # type: ignore[no-untyped-def]
        place = Place(kind=kind, read_bytes_per_second=rate)
        return advise("vllm", version, place, weight_bytes=self.WEIGHTS, memory_bytes=memory, **more)  # type: ignore[arg-type]

    def test_a_local_disk_needs_nothing(self) -> None:
        advice = self.of("disk", rate=2.2e9, gpus=8, packages={"instanttensor": "1", "fastsafetensors": "1"})
        assert (advice.loader, advice.args, advice.stage) == ("default", [], False)
        assert advice.seconds.low is not None
        assert advice.seconds.mid == pytest.approx(self.WEIGHTS / 2.2e9, rel=0.3)

    def test_a_fast_disk_pays_for_a_faster_loader_that_is_installed(self) -> None:
        assert self.of("disk", rate=2e10, gpus=8, packages={"instanttensor": "1"}).args == ["--load-format", "instanttensor"]
        assert (
            self.of("disk", "0.17.0", rate=2e10, gpus=8, packages={"instanttensor": "1", "fastsafetensors": "1"}).loader
            == "fastsafetensors"
        )
        assert self.of("disk", rate=2e10, gpus=8).loader == "default"
        assert self.of("disk", rate=2e10, gpus=0, packages={"instanttensor": "1"}).loader == "default"

    def test_nfs_by_release_and_memory(self) -> None:
        assert self.of("nfs").args == []
        assert self.of("nfs").loader == "auto-prefetch"
        assert self.of("nfs", memory=256 << 30).args == ["--safetensors-load-strategy", "eager"]
        assert self.of("nfs", "0.16.0").loader == "eager"
        assert self.of("nfs", "0.8.5").stage
        assert self.of("nfs", None).args == []
        assert "not known" in self.of("nfs", None).because

    def test_vllm_does_not_prefetch_from_9p_by_itself(self) -> None:
        assert self.of("9p").args == ["--safetensors-load-strategy", "prefetch"]

    def test_every_loader_has_its_reason(self) -> None:
        others = self.of("disk", rate=2e9, gpus=8, packages={}).others
        assert set(others) == {"fastsafetensors", "instanttensor", "runai_streamer", "sharded_state"}
        assert others["instanttensor"] == "the disk is the limit, not the loader"
        fast = self.of("disk", rate=2e10, gpus=8, packages={"fastsafetensors": "1"})
        assert fast.loader == "fastsafetensors"
        assert fast.others["instanttensor"] == "not installed: instanttensor"
        assert self.of("disk", "0.8.0", rate=2e10, gpus=8).others["fastsafetensors"] == "from vLLM 0.9 on"
        assert self.of("disk", rate=2e10).others["instanttensor"] == "for NVIDIA GPUs, and none was found"
        assert "not known" in self.of("disk", None).others["sharded_state"]

    def test_a_streamer_for_releases_without_a_strategy(self) -> None:
        advice = self.of("nfs", "0.8.5", packages={"runai-model-streamer": "1"})
        assert (advice.args, advice.stage) == (["--load-format", "runai_streamer"], True)

    def test_files_that_were_saved_per_rank(self) -> None:
        assert self.of("disk", per_rank=True).args == ["--load-format", "sharded_state"]

    def test_llamacpp_reads_through_a_network(self) -> None:
        assert advise("llamacpp", None, Place(kind="nfs"), weight_bytes=1 << 30).args == ["--no-mmap"]
        assert advise("llamacpp", None, Place(kind="disk"), weight_bytes=1 << 30).args == []

    def test_unknown_storage_has_no_upper_bound(self) -> None:
        figure = load_seconds(loaders()["default"], Place(kind="disk"), 1 << 30)
        assert figure.high is None
        assert figure.low is not None
        assert figure.mid is None


def test_every_loader_names_its_source() -> None:
    assert all(loader.source and len(loader.rate) == 2 and loader.rate[0] < loader.rate[1] for loader in loaders().values())


def test_the_demo_is_pinned() -> None:
    demo = find_preset("demo")
    assert demo is not None
    assert (len(demo.sha256), len(demo.wheel_sha256), demo.license) == (64, 64, "Apache-2.0")
    assert demo.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "demo" in presets()


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", "", "a//b", "a\\b", ".firstlight/manifest.json", "a\0"])
def test_names_that_leave_the_folder(name: str) -> None:
    with pytest.raises(FirstlightError):
        safe_name(name)


def test_references() -> None:
    assert split_ref("org/name") == ("org/name", None, None)
    assert split_ref("hf://org/name@v1.0:Q4_K_M") == ("org/name", "v1.0", "Q4_K_M")
    with pytest.raises(InputError):
        split_ref("name")


def test_waits_grow_and_are_bounded() -> None:
    assert 0.1 < backoff_seconds(1) <= 0.25
    assert all(backoff_seconds(n) <= 30 for n in range(1, 60))
    assert backoff_seconds(60) >= 15


def test_a_rate_is_remembered_by_place(tmp_path: Path) -> None:
    assert not expected_seconds(tmp_path, "hub x", 100).known
    remember_rate(tmp_path, "hub x", 1000, 10.0)
    assert expected_seconds(tmp_path, "hub x", 1000).mid == 10.0
    assert not expected_seconds(tmp_path, "hub y", 1000).known


def test_read_speed_is_bounded_and_unknown_for_small_files(tmp_path: Path) -> None:
    import time

    big, small = tmp_path / "big", tmp_path / "small"
    big.write_bytes(bytes(80 << 20))
    small.write_bytes(b"x")
    begun = time.monotonic()
    rate = read_rate([big], seconds=0.5)
    assert time.monotonic() - begun < 5
    assert rate is not None
    assert rate > 1e6
    assert read_rate([small]) is None
    assert storage_kind(tmp_path) in ("disk", "tmpfs")


@pytest.mark.parametrize(
    ("name", "value", "seconds"),
    [
        ("Retry-After", "7", 7.0),
        ("Retry-After", "100000", 300.0),
        ("Retry-After", "Thu, 01 Jan 1970 00:01:40 GMT", 100.0),
        ("Retry-After", "soon", None),
        ("RateLimit", '"api";r=0;t=42', 42.0),
        ("Server", "x", None),
    ],
)
def test_how_long_a_server_wants_us_to_wait(name: str, value: str, seconds: float | None) -> None:
    headers = Message()
    headers[name] = value
    assert retry_after(headers, 0.0) == seconds


@pytest.mark.parametrize(
    ("status", "headers", "place"),
    [
        (206, {"Content-Range": "bytes 5-9/100"}, (5, 100)),
        (206, {"Content-Range": "bytes 5-9/*"}, (5, None)),
        (206, {"Content-Range": "nonsense"}, (0, None)),
        (200, {"Content-Length": "7"}, (0, 7)),
        (200, {}, (0, None)),
    ],
)
def test_where_a_body_starts(status: int, headers: dict[str, str], place: tuple[int, int | None]) -> None:
    message = Message()
    for name, value in headers.items():
        message[name] = value
    assert content_range(status, message) == place
