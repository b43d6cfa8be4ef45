#!/usr/bin/env bash
# A real SGLang that needs no GPU, in an environment of its own: about four minutes and 2.5 GB.
#
#     examples/cpu/install-sglang.sh FOLDER [PYTHON]
#
# Needs Linux on x86-64 with AVX2, a Python of 3.10 to 3.12, and a C++ compiler for n-gram drafts.
# Where pip would take the CUDA build of torch, let PIP_INDEX_URL or PIP_EXTRA_INDEX_URL name an index
# that has the build for CPUs.
#
# What is SGLang's own: its wheel, unchanged. So the HTTP server, the scheduler, the prefix cache, the
# models and the counters are. What is not:
#   * sglang-kernel, whose wheel needs CUDA: sglang_cpu/ beside this script stands in for it
#   * torch 2.13.0 in place of 2.14.1, and what only GPUs, images and sound need is left out
#   * a list of operators in torchvision, emptied where its build cannot be loaded beside this torch
#
# A sweep then says:  hardware: {gpu: cpu, count: 1}
#     engines: [{engine: sglang, runtime: {venv: FOLDER}, extra_args: [--max-total-tokens, 32k]}]
# or, to speculate,   engines: [{engine: sglang, runtime: {path: FOLDER/bin/sglang-cpu}, …}]
# which starts the same server with attention that can verify drafts, also not SGLang's own.
# Without a limit the KV cache takes memory_utilization of the machine's memory, and seconds to do so.
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

# Of its requirements those that a language model on a CPU meets, in the versions that it asks for.
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
# dill and jsonschema come with what was left out.
pip install --requirement "$scratch/requirements.txt" dill jsonschema "triton==$TRITON" "torch==$TORCH"

# A torchvision that was built for CUDA brings no operators here, and cannot describe them either.
# SGLang only wants its image transforms to be importable.
if ! "$folder/bin/python" -c "import torchvision" 2>/dev/null; then
    packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo '"""Emptied: this build has no operators to describe."""' \
        >"$packages/torchvision/_meta_registrations.py"
    "$folder/bin/python" -c "import torchvision"
fi

cp -r "$here/sglang_cpu" "$scratch/sglang_cpu" # building leaves files behind
pip install --no-deps --no-build-isolation "$scratch/sglang_cpu"

"$folder/bin/python" -c "import sglang; print('sglang', sglang.__version__)" | tail -n 1
