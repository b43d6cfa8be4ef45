"""Checks of the flips: whether an arm ran what its name says."""

from __future__ import annotations

from collections.abc import Sequence

from harness.results.metrics import RunMetrics
from harness.results.store import Evidence, RunManifest
from harness.results.summary import RunRow, RunWarning

_NOT_REACHED = "the flip did not reach the engine: look at its launch line and its log"
_ONE_ARM_TWICE = "what one flip drags along is what the other asks for: they are one arm twice"


def not_exercised(_: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    """Warn about a flip whose counter this load could not have moved."""
    idle = [name for name, proof in _flip_proofs(manifest) if proof.verdict == "not exercised"]
    if not idle:
        return None
    return RunWarning(
        name="toggle_not_exercised",
        message=f"this load does not exercise {', '.join(idle)}, so its effect is not proven",
        remedy="choose a workload and load that do",
    )


def unverifiable(_: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    """Warn about a flip that no counter confirms; what the engine reports is a claim only.

    What is simulated needs no proof: the embedded engine is the settings that it was made from.
    """
    unknown = [
        (name, proof) for name, proof in _flip_proofs(manifest) if proof.verdict == "unverifiable"
    ]
    if not unknown or manifest.engine_kind == "simulated":
        return None
    silent = [name for name, proof in unknown if proof.effective != proof.requested]
    if silent:
        return RunWarning(
            name="toggle_unverifiable",
            message=f"the engine does not tell whether the flip took effect: {', '.join(silent)}",
            remedy="look at the launch line and the engine's log; the label alone proves nothing",
        )
    names = ", ".join(name for name, _ in unknown)
    return RunWarning(
        name="toggle_unverifiable",
        message=f"the engine says that the flip took effect, and no counter shows it: {names}",
        remedy="read its effect as that of a setting that was passed, not of one that was seen",
    )


def other_versions(runs: Sequence[RunRow]) -> dict[str, RunWarning]:
    """Return a warning per run key where one engine's runs were of several versions.

    Give the runs of one engine label. A difference between versions would pass for an effect.
    """
    versions = sorted({run.engine_version for run in runs if run.engine_version})
    if len(versions) < 2:
        return {}
    warning = RunWarning(
        name="versions_differ",
        message=f"the runs of {runs[0].label} are of several versions: {', '.join(versions)}",
        remedy="what differs between them may be the version: run all arms on one",
    )
    return {run.key: warning for run in runs}


def _flip_proofs(manifest: RunManifest) -> list[tuple[str, Evidence]]:
    evidence = manifest.evidence
    return [(name, evidence[name]) for name in manifest.flipped if name in evidence]


def same_settings(runs: Sequence[RunRow]) -> dict[str, RunWarning]:
    """Return a warning per run key for arms whose engine runs the same settings as another arm.

    Give the runs of one engine, workload, load and block. Where the labels differ and the engine
    says that it does not, the arms measure one thing twice. `baseline-again` is meant to be the
    same, and the baseline is never to blame.
    """
    reported = {
        run.key: settings
        for run in runs
        if run.arm != "baseline-again" and (settings := _effective(run)) is not None
    }
    names = {run.key: run.arm for run in runs}
    shared: dict[str, RunWarning] = {}
    for key, settings in reported.items():
        twins = [names[k] for k, other in reported.items() if k != key and other == settings]
        if twins and names[key] != "baseline":
            asked = {run.key: run.toggles for run in runs}
            meant = any(
                asked[k] == asked[key] for k in reported if k != key and reported[k] == settings
            )
            remedy = _ONE_ARM_TWICE if meant else _NOT_REACHED
            shared[key] = RunWarning(
                name="same_settings",
                message=f"the engine says that it runs the same settings as {', '.join(twins)}",
                remedy=remedy,
            )
    return shared


def _effective(run: RunRow) -> tuple[tuple[str, str], ...] | None:
    """Return the toggles as the engine reports them; None when it leaves one of the flips out."""
    reported = {toggle: proof.effective for toggle, proof in run.evidence.items()}
    if not reported or any(reported.get(toggle) is None for toggle in run.flipped):
        return None
    return tuple(sorted((toggle, str(value)) for toggle, value in reported.items()))
