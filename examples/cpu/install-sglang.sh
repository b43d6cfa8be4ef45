#!/usr/bin/env bash
# Install a real SGLang for CPUs in its own environment: about four minutes and 2.5 GB.
#
#     examples/cpu/install-sglang.sh FOLDER [PYTHON]
#
# Needs Linux on x86-64 with AVX2, Python 3.10 to 3.12, and a C++ compiler for n-gram drafts. If pip
# would install the CUDA build of torch, set PIP_INDEX_URL or PIP_EXTRA_INDEX_URL to an index with the
# CPU build.
#
# SGLang's wheel is unchanged: HTTP server, scheduler, prefix cache, models and counters are SGLang's.
# Differences:
#   * sglang_cpu/ next to this script replaces sglang-kernel, whose wheel needs CUDA
#   * torch is 2.13.0 instead of 2.14.1, without packages that only GPUs, images and sound need
#   * a list of operators in torchvision is emptied if its build does not load with this torch
#
# In a sweep file:      hardware: {gpu: cpu, count: 1}
#     engines: [{engine: sglang, runtime: {venv: FOLDER}, extra_args: [--max-total-tokens, 32k]}]
# With speculation:     engines: [{engine: sglang, runtime: {path: FOLDER/bin/sglang-cpu}, …}]
# This starts the same server with attention from sglang_cpu/, which can verify draft tokens.
# Without a limit the KV cache uses memory_utilization of the memory, and allocating it takes seconds.
set -euo pipefail

SGLANG=0.5.23
TORCH=2.13.0
TORCHVISION=0.28.0
TRITON=3.7.1

folder=${1:?usage: install-sglang.sh FOLDER [PYTHON]}
python=${2:-python3.11}
here=$(cd "$(dirname "$0")" && pwd)

if [ -x "$folder/bin/sglang-cpu" ] &&
    compgen -G "$folder/lib/python3*/site-packages/sglang-$SGLANG.dist-info" >/dev/null; then
    echo "SGLang $SGLANG is in $folder already"
    exit 0
fi
if ! grep -qm1 -w avx2 /proc/cpuinfo; then
    echo "error: this build needs a processor with AVX2" >&2
    exit 1
fi

"$python" -m venv "$folder"
pip() { "$folder/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
pip install "torch==$TORCH"
pip install --no-deps "sglang==$SGLANG" "torchvision==$TORCHVISION"

# The requirements of SGLang for a language model on a CPU, in the versions that it specifies.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$folder/bin/python" - >"$scratch/requirements.txt" <<'PYTHON'
import re
from importlib.metadata import requires

needed = """
aiohttp compressed-tensors distro einops fastapi gguf interegular IPython llguidance msgspec numpy
openai openai-harmony orjson packaging partial_json_parser pillow prometheus-client psutil pybase64
pydantic python-dateutil python-multipart pyzmq regex requests scipy sentencepiece setproctitle
soundfile tiktoken tokenizers tqdm transformers uvicorn uvloop watchfiles xgrammar xxhash zstandard
""".split()
for requirement in requires("sglang") or ():
    name = re.match(r"[\w.-]+", requirement)[0]
    if name in needed and "extra ==" not in requirement:
        print(requirement)
PYTHON
# dill and jsonschema are normally installed with the omitted packages.
pip install --requirement "$scratch/requirements.txt" dill jsonschema "triton==$TRITON" "torch==$TORCH"

# A CUDA build of torchvision has no operators here and fails when it describes them. SGLang only needs
# to import its image transforms.
if ! "$folder/bin/python" -c "import torchvision" 2>/dev/null; then
    packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo '"""Emptied: this build has no operators to describe."""' \
        >"$packages/torchvision/_meta_registrations.py"
    "$folder/bin/python" -c "import torchvision"
fi

cp -r "$here/sglang_cpu" "$scratch/sglang_cpu" # the build creates files in the folder
pip install --no-deps --no-build-isolation "$scratch/sglang_cpu"

"$folder/bin/python" -c "import sglang; print('sglang', sglang.__version__)" | tail -n 1
