"""The text that a server's `/metrics` returns, as numbers. Pure, and parsed once a scrape."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'\s*([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: what is counted, of which part, and how many."""

    name: str
    labels: Mapping[str, str]
    value: float


class ServerMetrics:
    """One scrape. A server of several engines has each series once an engine: sums are of all."""

    def __init__(self, text: str) -> None:
        """Parse `text`; lines that are no samples are left out."""
        self._samples: dict[str, list[Sample]] = {}
        for line in text.splitlines():
            if sample := _sample(line):
                self._samples.setdefault(sample.name, []).append(sample)

    def total(self, *names: str, **labels: str) -> float | None:
        """Return the sum over all engines of the first name that is there; None for none of them.

        Names changed over versions: give the newest first. A counter may end in `_total` or not.
        """
        found = self.series(*names, **labels)
        return sum(found.values()) if found else None

    def series(self, *names: str, **labels: str) -> dict[str, float]:
        """Return the values that `total` adds up, each by its name and labels; empty for none."""
        for name in names:
            for spelling in (name, f"{name}_total"):
                fitting = list(self._fitting(spelling, labels))
                if fitting:
                    return {f"{one.name}{sorted(one.labels.items())}": one.value for one in fitting}
        return {}

    def count(self, *names: str, **labels: str) -> int | None:
        """Return `total` as a whole number."""
        total = self.total(*names, **labels)
        return None if total is None or not math.isfinite(total) else round(total)

    def nanoseconds(self, *names: str, **labels: str) -> int | None:
        """Return a `total` of seconds as whole nanoseconds."""
        total = self.total(*names, **labels)
        return None if total is None or not math.isfinite(total) else round(total * 1e9)

    def above(self, histogram: str, limit: float) -> int | None:
        """Return how many observations of a histogram are surely above `limit`.

        Buckets have edges where the server drew them, so this is a lower bound: what lies between
        `limit` and the next edge is not counted. None when there is no such histogram.
        """
        buckets = self._samples.get(f"{histogram}_bucket", [])
        everything, below, edge = 0.0, 0.0, self._edge(buckets, limit)
        for sample in buckets:
            bound = float(sample.labels.get("le", "nan"))
            everything += sample.value if bound == math.inf else 0.0
            below += sample.value if bound == edge else 0.0
        return round(everything - below) if buckets else None

    def labels(self, name: str) -> Mapping[str, str] | None:
        """Return the labels of the first sample of a name: what `…_info` series are made of."""
        samples = self._samples.get(name)
        return samples[0].labels if samples else None

    def has(self, prefix: str) -> bool:
        """Return whether any series begins with `prefix`."""
        return any(name.startswith(prefix) for name in self._samples)

    def _fitting(self, name: str, labels: Mapping[str, str]) -> Iterable[Sample]:
        for sample in self._samples.get(name, ()):
            if all(sample.labels.get(key) == value for key, value in labels.items()):
                yield sample

    @staticmethod
    def _edge(buckets: Iterable[Sample], limit: float) -> float:
        edges = {float(sample.labels.get("le", "nan")) for sample in buckets}
        return min((edge for edge in edges if edge >= limit), default=math.inf)


def _sample(line: str) -> Sample | None:
    found = _SAMPLE.match(line.strip())
    if found is None:
        return None
    try:
        value = float(found[3])
    except ValueError:
        return None
    return Sample(found[1], dict(_pairs(found[2] or "")), value)


def _pairs(text: str) -> Iterable[tuple[str, str]]:
    for label in _LABEL.finditer(text):
        yield label[1], re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), label[2])
