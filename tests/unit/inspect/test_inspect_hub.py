"""A model on a hub: the same Checkpoint as from its folder, headers only, and every refusal as a clear error without the token."""

import gguf_made
import hub_made
import pytest
from hub_made import COMMIT, serving
from inspect_made import codes, look, tiny_tensors, write_sharded, write_tiny

from firstlight.core.errors import FirstlightError
from firstlight.inspect.checkpoint import inspect
from firstlight.inspect.hub import HubSource

TOKEN = "hf_" + "s" * 24


@pytest.fixture
def model(tmp_path):
    return write_tiny(tmp_path / "model", shards=3)


def _source(address, *, quant=None, revision=None, sleep=lambda _: None, **env):
    return HubSource(
        "org/name", "org/name", revision=revision, quant=quant, env={"HF_ENDPOINT": address, "HOME": "/nowhere", **env}, sleep=sleep
    )


def test_the_same_as_from_the_folder(model):
    with serving(model) as (hub, address):
        found = inspect(_source(address))
    local = look(model)
    assert found.revision == COMMIT
    assert (found.ref, found.path, found.name) == ("org/name", None, "name")
    assert found.tensor_groups == local.tensor_groups
    assert (found.tensor_bytes, found.file_bytes, found.files) == (local.tensor_bytes, local.file_bytes, local.files)
    assert codes(found) == []
    for i in (1, 2, 3):
        assert len(hub.requests_for(f"model-0000{i}-of-00003.safetensors")) == 1


def test_long_headers_take_two_requests_and_never_the_weights(tmp_path):
    tensors = {f"model.layers.{i}.mlp.experts.{e}.up_proj.weight": ("BF16", [512, 512]) for i in range(2) for e in range(900)}
    write_tiny(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    write_sharded(tmp_path, tensors, 2)
    with serving(tmp_path) as (hub, address):
        found = inspect(_source(address))
    assert found.tensor_count == 1800
    for i in (1, 2):
        ranges = hub.requests_for(f"model-0000{i}-of-00002.safetensors")
        assert len(ranges) == 2
        assert max(int(r.rpartition("-")[2]) for r in ranges) < 300_000 < (tmp_path / f"model-0000{i}-of-00002.safetensors").stat().st_size


def test_many_at_once_but_not_more_than_sixteen(tmp_path):
    write_tiny(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    write_sharded(tmp_path, {f"t{i}": ("U8", [4]) for i in range(80)}, 40)
    with serving(tmp_path) as (hub, address):
        hub.delay = 0.05
        assert inspect(_source(address)).shards == 40
    assert 1 < hub.most_at_once <= 16


def test_server_without_ranges(model):
    with serving(model) as (hub, address):
        hub.ranges = False
        assert inspect(_source(address)).tensor_count == len(tiny_tensors())


def test_redirect_to_another_origin_goes_without_the_token(model):
    with serving(model) as (store, elsewhere), serving(model) as (hub, address):
        hub.elsewhere = elsewhere
        assert inspect(_source(address, HF_TOKEN=TOKEN)).tensor_count == len(tiny_tensors())
    assert {a for *_, a in hub.seen} == {f"Bearer {TOKEN}"}
    assert {a for *_, a in store.seen} == {None}


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 408])
def test_what_passes_by_itself_is_tried_again(model, status):
    with serving(model) as (hub, address):
        hub.refuse = {"/api/": [(status, {"once": "1"})], "config.json": [(status, {"once": "1"})]}
        assert inspect(_source(address)).tensor_count == len(tiny_tensors())


def test_retry_after_is_honoured(model):
    waits = []
    with serving(model) as (hub, address):
        hub.refuse = {"/api/": [(429, {"once": "1", "retry-after": "7"})]}
        inspect(_source(address, sleep=waits.append))
    assert waits == [7.0]


@pytest.mark.parametrize(
    ("status", "headers", "code"),
    [
        (401, {}, "hub-unauthorized"),
        (401, {"x-error-code": "GatedRepo"}, "hub-gated"),
        (403, {}, "hub-gated"),
        (404, {}, "hub-model-not-found"),
        (404, {"x-error-code": "RevisionNotFound"}, "hub-revision-not-found"),
        (429, {}, "hub-rate-limited"),
        (500, {}, "hub-failing"),
        (503, {}, "hub-failing"),
        (418, {}, "hub-refused"),
    ],
)
@pytest.mark.parametrize("token", ["", TOKEN])
def test_refusals_are_named_and_the_token_never_is(model, status, headers, code, token):
    with serving(model) as (hub, address):
        hub.refuse = {"/api/": [(status, headers)]}
        with pytest.raises(FirstlightError) as error:
            inspect(_source(address, HF_TOKEN=token))
    e = error.value
    assert e.code == code
    assert f"HTTP {status}" in e.evidence[0]
    assert TOKEN not in repr((str(e), e.message, e.evidence, e.hint))
    assert ("HF_TOKEN: given" if token else "HF_TOKEN: not set") in e.evidence


def test_truncated_answers_are_tried_again_and_then_an_error(model):
    with serving(model) as (hub, address):
        hub.cut = 2
        assert inspect(_source(address)).tensor_count == len(tiny_tensors())
        hub.cut = 10_000
        with pytest.raises(FirstlightError) as error:
            inspect(_source(address))
    assert error.value.code == "hub-truncated"


def test_nobody_there():
    with pytest.raises(FirstlightError) as error:
        inspect(_source("http://127.0.0.1:9"))
    assert error.value.code == "hub-unreachable"


def test_an_answer_that_is_no_hub(tmp_path):
    write_tiny(tmp_path)
    with serving(tmp_path) as (hub, address):
        hub.refuse = {"/api/": [(200, {"content-type": "text/html"})]}
        with pytest.raises(FirstlightError) as error:
            inspect(_source(address))
    assert error.value.code in ("hub-answer", "not-a-checkpoint")


def test_one_quantization_of_a_gguf_repository(tmp_path):
    for quant in ("Q4_K_M", "Q8_0"):
        gguf_made.write(tmp_path / f"m-{quant}.gguf", gguf_made.llama(), gguf_made.llama_tensors())
    with serving(tmp_path) as (_, address):
        assert inspect(_source(address, quant="q8_0")).files.keys() == {"m-Q8_0.gguf"}
        with pytest.raises(FirstlightError) as error:
            inspect(_source(address, quant="IQ1_S"))
    assert error.value.code == "gguf-not-found"


def test_config_alone_on_a_hub(tmp_path):
    write_tiny(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with serving(tmp_path) as (_, address):
        assert codes(inspect(_source(address))) == ["weights-absent", "tensors-derived"]


def test_revision_is_part_of_the_address(model):
    with serving(model) as (hub, address):
        inspect(_source(address, revision="refs/pr/3"))
    assert any("refs%2Fpr%2F3" in path for _, path, *_ in hub.seen)


def test_a_signed_address_that_has_run_out_is_asked_for_again(model):
    with serving(model) as (store, elsewhere), serving(model) as (hub, address):
        hub.elsewhere = elsewhere
        source = _source(address)
        source.list()
        first = source.read("config.json", 0, 10)
        store.refuse = {"/blob/": [(403, {"once": "1"})]}
        assert source.read("config.json", 0, 10) == first
    assert len(hub.requests_for("config.json")) == 2


@pytest.mark.parametrize("token", ["hf_SECRET TOKEN", "hf_SECRET€TOKEN", "hf_SECRET\x01TOKEN"])
def test_a_token_that_no_header_can_carry_is_not_shown(token):
    with pytest.raises(FirstlightError) as caught:
        _source("http://127.0.0.1:1", HF_TOKEN=token)
    shown = f"{caught.value.message} {caught.value.evidence} {caught.value.hint}"
    assert caught.value.code == "hub-unauthorized"
    assert "SECRET" not in shown
    assert "HF_TOKEN" in shown


def test_line_breaks_around_and_in_a_token_are_dropped(model):
    with serving(model) as (hub, address):
        _source(address, HF_TOKEN="\nhf_abc\r\ndef\n").list()
    assert hub.seen[0][3] == "Bearer hf_abcdef"


def test_a_password_in_the_endpoint_is_not_shown():
    source = _source("http://me:SECRET@127.0.0.1:1")
    with pytest.raises(FirstlightError) as caught:
        source.list()
    assert caught.value.code == "hub-unreachable"
    assert "SECRET" not in f"{caught.value.message} {caught.value.evidence}"


def test_redirects_in_a_circle(model):
    with serving(model) as (hub, address):
        hub.refuse = {"/api/": [(302, {"location": f"{address}/api/models/org/name"})]}
        with pytest.raises(FirstlightError) as caught:
            _source(address).list()
    assert caught.value.code == "hub-answer"


def test_a_redirect_that_leads_nowhere_names_where(model):
    with serving(model) as (hub, address):
        hub.refuse = {"/resolve/": [(302, {"location": "http://127.0.0.1:1/blob/x?signature=SECRET"})]}
        with pytest.raises(FirstlightError) as caught:
            inspect(_source(address))
    assert caught.value.message == "http://127.0.0.1:1 cannot be reached"
    assert "SECRET" not in str(caught.value.evidence)


def test_a_mirror_whose_list_has_no_sizes(model, monkeypatch):
    listing = hub_made._Handler._listing
    with serving(model) as (hub, address):
        whole = _source(address).list()
        monkeypatch.setattr(hub_made._Handler, "_listing", _without_sizes(listing))
        found = _source(address)
        assert [(f.path, f.size) for f in found.list()] == [(f.path, f.size) for f in whole]
        assert codes(inspect(found)) == []
        hub.refuse = {"/tree/": [(404, {})]}
        with pytest.raises(FirstlightError, match="does not say how large") as caught:
            _source(address).list()
        assert caught.value.code == "hub-answer"


def _without_sizes(listing):
    """A file list as some mirrors give it; the tree, which is made from the same list, keeps its sizes."""

    def short(self, hub):
        full = listing(self, hub)
        return full if "/tree/" in self.path else {**full, "siblings": [{"rfilename": s["rfilename"]} for s in full["siblings"]]}

    return short


def test_a_server_that_sends_another_part(model):
    with serving(model) as (hub, address):
        source = _source(address)
        source.list()
        hub.refuse = {"/resolve/": [(206, {"content-range": "bytes 5-20/900"})]}
        with pytest.raises(FirstlightError) as caught:
            source.read("config.json", 0, 10)
    assert (caught.value.code, caught.value.evidence) == ("hub-answer", ("config.json: expected: bytes from 0, found: from 5",))


def test_a_revision_with_slashes_is_no_part_of_the_name(model):
    with serving(model) as (_, address):
        source = HubSource("hf://org/name@refs/pr/1", "org/name", revision="refs/pr/1", quant=None, env={"HF_ENDPOINT": address})
        assert inspect(source).name == "name"
