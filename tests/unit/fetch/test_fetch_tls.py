"""HTTPS with a certificate of one's own: trusted where the environment names it, refused at once elsewhere."""

import asyncio
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub.models import COMMIT, REPO, digests, write_model
from hub.server import Hub
from huggingface_hub import close_session

from firstlight.core.errors import HostError
from firstlight.fetch.fetch import fetch

NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Key and certificate in one file, for loopback alone."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl")
    key, made = tmp_path / "key.pem", tmp_path / "certificate.pem"
    argv = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2", "-nodes"]
    subprocess.run([*argv, "-keyout", key, "-out", made, "-subj", "/CN=localhost", "-addext", NAMES], check=True, capture_output=True)
    made.write_bytes(made.read_bytes() + key.read_bytes())
    return made


@pytest.fixture
def secure(tmp_path: Path, certificate: Path) -> Iterator[Hub]:
    write_model(tmp_path / "hub" / REPO / COMMIT, shards=6, size=300_000, extras=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with Hub(tmp_path / "hub", tls=context) as running:
        yield running


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_a_folder_over_https_with_faults(secure: Hub, certificate: Path, tmp_path: Path, variable: str) -> None:
    secure.faults.reset_every, secure.faults.reset_after = 3, 50_000
    env = {"HOME": str(tmp_path / "home"), variable: str(certificate)}
    fetched = asyncio.run(fetch(f"{secure.url}/plain/{REPO}/{COMMIT}/", env=env, patience=5))
    assert digests(Path(fetched.path)) == digests(secure.folder / REPO / COMMIT)


def test_a_hub_over_https(secure: Hub, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))  # huggingface_hub reads this process's own, once
    env = {"HOME": str(tmp_path / "home"), "HF_ENDPOINT": secure.url, "SSL_CERT_FILE": str(certificate)}
    close_session()
    try:
        fetched = asyncio.run(fetch(REPO, env=env, patience=5))
    finally:
        close_session()
    assert digests(Path(fetched.path)) == digests(secure.folder / REPO / COMMIT)


@pytest.mark.parametrize("by", ["hub", "address"])
def test_an_untrusted_certificate_is_refused_at_once(secure: Hub, tmp_path: Path, by: str) -> None:
    env = {"HOME": str(tmp_path / "home"), "HF_ENDPOINT": secure.url}
    begun = time.monotonic()
    with pytest.raises(HostError) as e:
        asyncio.run(fetch(REPO if by == "hub" else f"{secure.url}/plain/{REPO}/{COMMIT}/", env=env, patience=30))
    assert e.value.code == "certificate-untrusted"
    assert "SSL_CERT_FILE" in (e.value.hint or "")
    assert time.monotonic() - begun < 10
    assert secure.counts.bodies == 0
