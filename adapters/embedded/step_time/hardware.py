"""The GPUs of the step-time model, and the error for an unknown name.

Values come from the vendors' data sheets, dense (without sparsity). Memory is as reported by CUDA.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from harness.adapters.base import EngineError

_GIB = 2**30
_MOST_MEANT = 3  # suggest at most so many names for an abbreviated name


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU in the step-time model: memory, bandwidth, arithmetic and links."""

    name: str
    memory_bytes: int  # as reported by CUDA; smaller than in the name
    bandwidth_bytes_per_s: float
    flops_per_s: float  # dense BF16 or FP16
    fp8_flops_per_s: float | None  # None: no FP8 arithmetic; FP8 can only be stored
    int8_ops_per_s: float
    link_bytes_per_s: float  # both directions, to the other GPUs of the machine
    host_bytes_per_s: float  # one direction, to the host's memory
    multiprocessors: int
    clock_hz: float  # clock of the multiprocessors under load
    hopper: bool  # has Hopper's asynchronous copies; `calibration.py` has their effect
    calibrated: bool  # `calibration.py` has kernel times measured on this GPU
    basis: str  # source of its times, printed in reports


_SCALED = "not calibrated: kernels measured on A100 and H100, scaled to this GPU"

_GPUS = (
    Gpu(
        name="a100-40gb",
        memory_bytes=int(39.4 * _GIB),
        bandwidth_bytes_per_s=1.555e12,
        flops_per_s=312e12,
        fp8_flops_per_s=None,
        int8_ops_per_s=624e12,
        link_bytes_per_s=600e9,
        host_bytes_per_s=32e9,  # PCIe 4.0 x16
        multiprocessors=108,
        clock_hz=1.41e9,
        hopper=False,
        calibrated=False,
        basis="not calibrated: kernels measured on A100-80GB, with this GPU's memory",
    ),
    Gpu(
        name="a100-80gb",
        memory_bytes=int(79.2 * _GIB),
        bandwidth_bytes_per_s=2.039e12,
        flops_per_s=312e12,
        fp8_flops_per_s=None,
        int8_ops_per_s=624e12,
        link_bytes_per_s=600e9,
        host_bytes_per_s=32e9,  # PCIe 4.0 x16
        multiprocessors=108,
        clock_hz=1.41e9,
        hopper=False,
        calibrated=True,
        basis="calibrated on kernels measured on A100-SXM4-80GB",
    ),
    Gpu(
        name="h100-80gb",
        memory_bytes=int(79.2 * _GIB),
        bandwidth_bytes_per_s=3.35e12,
        flops_per_s=989.5e12,
        fp8_flops_per_s=1979e12,
        int8_ops_per_s=1979e12,
        link_bytes_per_s=900e9,
        host_bytes_per_s=64e9,  # PCIe 5.0 x16
        multiprocessors=132,
        clock_hz=1.755e9,
        hopper=True,
        calibrated=True,
        basis="matrix products and all-reduces calibrated on H100-SXM5-80GB, attention measured on "
        "an A100-80GB and scaled",
    ),
    Gpu(
        name="h200",
        memory_bytes=int(139.8 * _GIB),
        bandwidth_bytes_per_s=4.8e12,
        flops_per_s=989.5e12,
        fp8_flops_per_s=1979e12,
        int8_ops_per_s=1979e12,
        link_bytes_per_s=900e9,
        host_bytes_per_s=64e9,  # PCIe 5.0 x16
        multiprocessors=132,
        clock_hz=1.755e9,
        hopper=True,
        calibrated=False,
        basis=_SCALED,
    ),
    Gpu(
        name="l40s",
        memory_bytes=int(44.4 * _GIB),
        bandwidth_bytes_per_s=864e9,
        flops_per_s=362e12,
        fp8_flops_per_s=733e12,
        int8_ops_per_s=733e12,
        link_bytes_per_s=64e9,  # PCIe 4.0 x16: no NVLink
        host_bytes_per_s=32e9,  # PCIe 4.0 x16
        multiprocessors=142,
        clock_hz=2.52e9,
        hopper=False,
        calibrated=False,
        basis=_SCALED,
    ),
    Gpu(
        name="b200",
        memory_bytes=int(178.4 * _GIB),
        bandwidth_bytes_per_s=8e12,
        flops_per_s=2250e12,
        fp8_flops_per_s=4500e12,
        int8_ops_per_s=4500e12,
        link_bytes_per_s=1800e9,
        host_bytes_per_s=64e9,  # PCIe 5.0 x16
        multiprocessors=148,
        clock_hz=1.85e9,
        hopper=True,
        calibrated=False,
        basis=_SCALED,
    ),
)


_GPU_BY_NAME = {gpu.name: gpu for gpu in _GPUS}


def all_gpus() -> tuple[Gpu, ...]:
    """Return all known GPUs."""
    return _GPUS


def find_gpu(name: str) -> Gpu:
    """Return the GPU called `name`, in upper or lower case.

    Raises `EngineError` with the nearest name.
    """
    gpu = _GPU_BY_NAME.get(name.strip().lower())
    if gpu is None:
        raise unknown_name("GPU", name, _GPU_BY_NAME, _GPU_BY_NAME, about="gpu")
    return gpu


def unknown_name(
    what: str, name: str, spellings: Iterable[str], listed: Iterable[str], *, about: str
) -> EngineError:
    """Return the error for an unknown `name`, with the most similar names and the full list.

    Suggests names that begin with `name`, otherwise the nearest spelling. `about` is the setting
    that contains the name.
    """
    bare = name.strip().lower().rsplit("/", 1)[-1]  # without the owner of the model
    names = list(listed)
    near = [full for full in names if bare and full.startswith(bare)][:_MOST_MEANT]
    near = near or difflib.get_close_matches(bare, list(spellings), n=1)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    error = EngineError(f"embedded engine: unknown {what} {name!r}{hint}")
    error.add_note(f"known {what}s: {', '.join(names)}")
    error.about = about
    return error
