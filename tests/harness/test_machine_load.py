"""How busy the machine was."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import machine_load as module
from harness.machine_load import MachineLoad, machine_load, stolen_share

STAT = "cpu  100 0 50 800 20 5 5 20 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"


def reading(total: int | None, stolen: int | None) -> MachineLoad:
    return MachineLoad(load_average=None, total_ticks=total, stolen_ticks=stolen, cpu_mhz=None)


def test_proc_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line of /proc/stat adds up to 1,000 ticks, 20 of them stolen; two clocks."""
    (tmp_path / "stat").write_text(STAT)
    (tmp_path / "cpuinfo").write_text("cpu MHz\t\t: 2000.0\nother: 1\ncpu MHz : 3000.5\n")
    monkeypatch.setattr(module, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(module, "_CPUINFO", tmp_path / "cpuinfo")

    found = machine_load()

    assert (found.total_ticks, found.stolen_ticks, found.cpu_mhz) == (1000, 20, 2500.25)
    assert found.load_average is not None


@pytest.mark.parametrize("text", ["", "cpu 1 2 3\n", "cpu a b c d e f g h\n"])
def test_what_a_system_does_not_report_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Absent, never 0: other systems and old kernels have no such line."""
    (tmp_path / "stat").write_text(text)
    monkeypatch.setattr(module, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(module, "_CPUINFO", tmp_path / "none")

    assert machine_load().total_ticks is None
    assert machine_load().stolen_ticks is None
    assert machine_load().cpu_mhz is None


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        ((1000, 20), (2000, 120), 0.1),
        ((1000, 20), (1000, 20), None),
        ((None, None), (1000, 20), None),
        ((1000, 0), (3000, 0), 0.0),
    ],
)
def test_the_stolen_share_is_of_the_time_between(
    before: tuple[int | None, int | None],
    after: tuple[int | None, int | None],
    share: float | None,
) -> None:
    """Ticks stolen over ticks passed; None where nothing passed or nothing is known."""
    assert stolen_share(reading(*before), reading(*after)) == share
