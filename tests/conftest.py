"""What every test starts from, wherever it is run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

# A shell starts what it puts into the background with SIGINT ignored, and that is inherited: the
# tests that interrupt would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# One measuring sweep per machine and user: each process of pytest-xdist is a machine of its own.
os.environ["HARNESS_LOCK"] = f"{tempfile.gettempdir()}/harness-tests-{os.getpid()}.lock"

# A width that somebody set, or the processes of pytest-xdist, would be that of every table.
os.environ.pop("COLUMNS", None)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1, signed by itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    folder = tmp_path_factory.mktemp("tls")
    subject = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"]
    subprocess.run(
        ["openssl", "req", "-x509", *key, *subject, *files], check=True, capture_output=True
    )
    return folder
