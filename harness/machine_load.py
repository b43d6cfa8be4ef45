"""How busy the machine was while a run was measured: load, stolen time, clock of the processors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_STAT, _CPUINFO = Path("/proc/stat"), Path("/proc/cpuinfo")
_STEAL = 7  # of the times in the first line of /proc/stat, after its name: see proc(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLoad:
    """One reading. None: this system does not report it."""

    load_average: float | None  # processes that ran or waited to, mean of the last minute
    total_ticks: int | None  # of all processors since the machine started
    stolen_ticks: int | None  # of these, taken by other virtual machines
    cpu_mhz: float | None  # mean over the processors


def machine_load() -> MachineLoad:
    """Read how busy the machine is now."""
    total, stolen = _ticks()
    return MachineLoad(
        load_average=_load_average(), total_ticks=total, stolen_ticks=stolen, cpu_mhz=_cpu_mhz()
    )


def stolen_share(before: MachineLoad, after: MachineLoad) -> float | None:
    """Return the share of processor time between two readings that other machines took."""
    ticks = (before.total_ticks, before.stolen_ticks, after.total_ticks, after.stolen_ticks)
    if any(tick is None for tick in ticks):
        return None
    total_before, stolen_before, total_after, stolen_after = (tick or 0 for tick in ticks)
    passed = total_after - total_before
    return (stolen_after - stolen_before) / passed if passed > 0 else None


def machine_facts(before: MachineLoad, after: MachineLoad) -> dict[str, float | None]:
    """Return what a manifest holds of the machine, from readings before and after a run."""
    return {
        "load_average_before": before.load_average,
        "load_average_after": after.load_average,
        "stolen_share": stolen_share(before, after),
        "cpu_mhz_before": before.cpu_mhz,
        "cpu_mhz_after": after.cpu_mhz,
    }


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _ticks() -> tuple[int | None, int | None]:
    """Return (all, stolen) processor time in ticks; user and nice contain the guests' already."""
    try:
        with _STAT.open(encoding="ascii") as file:
            times = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None, None
    return (sum(times), times[_STEAL]) if len(times) > _STEAL else (None, None)


def _cpu_mhz() -> float | None:
    """Return the mean clock of the processors in MHz, as /proc/cpuinfo gives it on x86."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    clocks = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return sum(clocks) / len(clocks) if clocks else None
