"""Whom a load, or a sweep, trusts over TLS."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from raw_server import raw_server
from relays import tls_relay

from harness.adapters import ENGINES
from harness.cli import main
from harness.experiment.sweep import SweepRunner
from harness.results.store.sweep_folder import read_runs
from tests.adapters.attached.test_adapter import plan_of
from tests.adapters.attached.test_requests_of_sweeps import file
from tests.harness.experiment.test_sweep import Quiet

FEW = ("--model", "m", "--requests", "3", "--output-tokens", "2")


def manifest_in(folder: Path) -> dict[str, Any]:
    (path,) = folder.rglob("manifest.json")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("trust", ["--no-verify-tls", "--ca"])
def test_a_load_trusts_whom_its_options_name(
    trust: str, certificate: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In its queries and in its requests; a certificate that is not verified is noted."""
    file_of_it = certificate / "cert.pem"
    words = [trust, str(file_of_it)] if trust == "--ca" else [trust]
    with raw_server() as server, tls_relay(server.url, certificate) as url:
        code = main(["load", url, *FEW, *words, "--out", str(tmp_path / "kept")])

    manifest = manifest_in(tmp_path)
    assert code == 0
    assert manifest["request"]["verify_tls"] == (str(file_of_it) if trust == "--ca" else False)
    unverified = "the server's certificate was not verified"
    assert (unverified in capsys.readouterr().out) == (trust == "--no-verify-tls")


def test_without_them_the_error_names_them(
    certificate: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server with a certificate of its own is refused at once."""
    with raw_server() as server, tls_relay(server.url, certificate) as url:
        code = main(["load", url, *FEW])

    error = capsys.readouterr().err
    assert code == 2
    assert "--ca FILE" in error
    assert "--no-verify-tls" in error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no such file"),
        ("no certificate", "no certificates in PEM form"),
        ("", "no certificates in PEM form"),
    ],
)
def test_a_file_without_certificates_is_refused(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its name."""
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text, encoding="utf-8")

    assert main(["load", "https://127.0.0.1:9", *FEW, "--ca", str(path)]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert str(path) in error


@pytest.mark.parametrize("trust", ["false", "off", "ca.pem"])
def test_a_sweep_trusts_whom_its_engine_names(
    trust: str, certificate: Path, tmp_path: Path
) -> None:
    """A file is looked for beside the sweep file."""
    shutil.copy(certificate / "cert.pem", tmp_path / "ca.pem")
    with raw_server() as server, tls_relay(server.url, certificate) as url:
        path = file(tmp_path, f'engine: url, url: "{url}", verify_tls: {trust}')
        adapters = {name: kind() for name, kind in ENGINES.items()}
        SweepRunner(plan_of(path), adapters, tmp_path / "out").run(Quiet())

    runs = list(read_runs(tmp_path / "out"))
    assert {run.manifest.status for run in runs} == {"ok"}
    expected = str(tmp_path / "ca.pem") if trust == "ca.pem" else False
    requests = [run.manifest.request for run in runs]
    assert [one.verify_tls for one in requests if one is not None] == [expected] * len(runs)
