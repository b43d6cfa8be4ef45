"""The only place that knows GPUs as numbers, and how a name that is not in a table is refused.

Figures are the vendors' data sheets, dense (without sparsity); memory is what the driver reports.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from adapters.base import EngineError

_GIB = 2**30
_MOST_MEANT = 3  # names that a cut one may stand for; more is no hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as the step-time model sees it: memory, its bandwidth, arithmetic, and links."""

    name: str
    memory_bytes: int  # what its driver reports, to the GiB
    bandwidth_bytes_per_s: float
    flops_per_s: float  # dense BF16 or FP16
    fp8_flops_per_s: float | None  # None: no FP8 arithmetic; FP8 can only be stored
    int8_ops_per_s: float
    link_bytes_per_s: float  # both directions, to the other GPUs of the machine
    host_bytes_per_s: float  # one direction, to the host's memory
    calibrated: bool  # kernels of this very GPU are in `calibration.py`
    basis: str  # what its times rest on; printed in reports


_SCALED = "not calibrated: efficiencies measured on an A100-80GB over this GPU's own peaks"

_GPUS = (
    Gpu(
        name="a100-40gb",
        memory_bytes=40 * _GIB,
        bandwidth_bytes_per_s=1.555e12,
        flops_per_s=312e12,
        fp8_flops_per_s=None,
        int8_ops_per_s=624e12,
        link_bytes_per_s=600e9,
        host_bytes_per_s=32e9,  # PCIe 4.0 x16
        calibrated=False,
        basis="not calibrated: the A100-80GB's kernels over this memory's bandwidth",
    ),
    Gpu(
        name="a100-80gb",
        memory_bytes=80 * _GIB,
        bandwidth_bytes_per_s=2.039e12,
        flops_per_s=312e12,
        fp8_flops_per_s=None,
        int8_ops_per_s=624e12,
        link_bytes_per_s=600e9,
        host_bytes_per_s=32e9,  # PCIe 4.0 x16
        calibrated=True,
        basis="calibrated on kernels measured on A100-SXM4-80GB",
    ),
    Gpu(
        name="h100-80gb",
        memory_bytes=80 * _GIB,
        bandwidth_bytes_per_s=3.35e12,
        flops_per_s=989.5e12,
        fp8_flops_per_s=1979e12,
        int8_ops_per_s=1979e12,
        link_bytes_per_s=900e9,
        host_bytes_per_s=64e9,  # PCIe 5.0 x16
        calibrated=False,
        basis=_SCALED,
    ),
    Gpu(
        name="h200",
        memory_bytes=140 * _GIB,
        bandwidth_bytes_per_s=4.8e12,
        flops_per_s=989.5e12,
        fp8_flops_per_s=1979e12,
        int8_ops_per_s=1979e12,
        link_bytes_per_s=900e9,
        host_bytes_per_s=64e9,  # PCIe 5.0 x16
        calibrated=False,
        basis=_SCALED,
    ),
    Gpu(
        name="l40s",
        memory_bytes=45 * _GIB,
        bandwidth_bytes_per_s=864e9,
        flops_per_s=362e12,
        fp8_flops_per_s=733e12,
        int8_ops_per_s=733e12,
        link_bytes_per_s=64e9,  # PCIe 4.0 x16: no NVLink
        host_bytes_per_s=32e9,  # PCIe 4.0 x16
        calibrated=False,
        basis=_SCALED,
    ),
    Gpu(
        name="b200",
        memory_bytes=179 * _GIB,
        bandwidth_bytes_per_s=8e12,
        flops_per_s=2250e12,
        fp8_flops_per_s=4500e12,
        int8_ops_per_s=4500e12,
        link_bytes_per_s=1800e9,
        host_bytes_per_s=64e9,  # PCIe 5.0 x16
        calibrated=False,
        basis=_SCALED,
    ),
)


_GPU_BY_NAME = {gpu.name: gpu for gpu in _GPUS}


def all_gpus() -> tuple[Gpu, ...]:
    """Return every GPU that is known."""
    return _GPUS


def find_gpu(name: str) -> Gpu:
    """Return the GPU called `name`, in any case. Raises `EngineError` with the nearest name."""
    gpu = _GPU_BY_NAME.get(name.strip().lower())
    if gpu is None:
        raise unknown_name("GPU", name, _GPU_BY_NAME, _GPU_BY_NAME, about="gpu")
    return gpu


def unknown_name(
    what: str, name: str, spellings: Iterable[str], listed: Iterable[str], *, about: str
) -> EngineError:
    """Return the error for a `name` that is in no table: the likeliest names, then the list.

    A name that was cut short means those that begin with it; else the nearest spelling is meant.
    `about` is the setting that holds it.
    """
    bare = name.strip().lower().rsplit("/", 1)[-1]  # the owner says little about the model
    names = list(listed)
    near = [full for full in names if bare and full.startswith(bare)][:_MOST_MEANT]
    near = near or difflib.get_close_matches(bare, list(spellings), n=1)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    error = EngineError(f"embedded engine: unknown {what} {name!r}{hint}")
    error.add_note(f"{what}s it knows: {', '.join(names)}")
    error.about = about
    return error
