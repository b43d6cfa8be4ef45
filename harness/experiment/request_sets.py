"""The request sets of a sweep's runs, drawn once for all arms that send the same."""

from __future__ import annotations

from harness.load import RequestSet, request_set_of
from harness.plan import PlannedRun
from harness.workloads.prompts import Prompt


class RequestSets:
    """The request sets of a block, and what share of their prompts a cache could serve."""

    def __init__(self) -> None:
        self._drawn: dict[tuple[str, str, int, int], RequestSet] = {}
        self._ceilings: dict[tuple[str, str, int, int, int], float | None] = {}

    def of(self, run: PlannedRun) -> RequestSet:
        """Return the requests of `run`; they are the same for all arms of a block."""
        key = (run.workload.name, run.load.label, run.block, run.seed)
        if key not in self._drawn:
            self._drawn = {k: q for k, q in self._drawn.items() if k[2] == run.block}
            self._drawn[key] = self.drawn(run, run.seed)
        return self._drawn[key]

    def drawn(self, run: PlannedRun, seed: int) -> RequestSet:
        """Return the requests of `run` for another seed; they are not kept."""
        limit = run.arm.settings.max_model_len
        return request_set_of(run.workload, run.load, seed=seed, max_model_len=limit)

    def ceiling(
        self, run: PlannedRun, block_tokens: int | None, primed: tuple[Prompt, ...]
    ) -> float | None:
        """Return the largest share of prompt tokens that a cache of such blocks could serve.

        None where the size of the engine's blocks is not known.
        """
        if block_tokens is None:
            return None
        key = (run.workload.name, run.load.label, run.block, run.seed, block_tokens)
        if key not in self._ceilings:
            self._ceilings[key] = self.of(run).prefix_hit_ceiling(block_tokens, primed)
        return self._ceilings[key]
