"""The types of a client's own measurements in the manifest of a run."""

from __future__ import annotations

from pydantic import ConfigDict

from harness.results.store.manifest_part import ManifestPart, Number


class LoopLagFacts(ManifestPart):
    """Lag of the event loop of a client process in ns, over `n` readings."""

    p50: Number | None = None
    p99: Number | None = None
    max: Number | None = None
    n: int | None = None


class WorkerFacts(ManifestPart):
    """Measurements of one client process."""

    priority: str | None = None
    cpu_s: float | None = None
    wall_s: float | None = None
    requests: int | None = None
    loop_lag_ns: LoopLagFacts | None = None
    read_on_the_clock: int | None = None
    replaced_connections: int | None = None
    recorded_turns: int | None = None


class OpenFiles(ManifestPart):
    """The peak of open files of a client process, and its limit."""

    limit: int | None = None
    most: int | None = None


class LocalPorts(ManifestPart):
    """The ports that connections used, and the ports available for one address."""

    available: int | None = None
    used: int | None = None


class CalibrationFacts(ManifestPart):
    """The calibration of the client on this machine; its file has more fields."""

    model_config = ConfigDict(extra="allow")

    highest_tokens_per_s: float | None = None


class ClientFacts(ManifestPart):
    """Measurements of a run's client, the input of its certificate."""

    kind: str | None = None
    workers: tuple[WorkerFacts, ...] = ()
    wall_clock_step_ns: Number | None = None
    open_files: OpenFiles | None = None
    ports: LocalPorts | None = None
    calibration: CalibrationFacts | None = None
