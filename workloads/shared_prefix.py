"""Single requests with a prefix that their group shares and a suffix that is unique."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from harness.workloads.base import Drawn, Segment, Turn, WorkloadError
from harness.workloads.fitting import LENGTHS_A_TIME, fitting_conversations
from harness.workloads.lengths import Lengths
from harness.workloads.seeds import generator, text_names


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """A service with one system prompt, or with one for each of several tenants (`groups`).

    Request i belongs to group i mod `groups` (round-robin), so each group has its share of a
    short run too. The length of a group's prefix is drawn once.
    """

    name: str
    prefix_tokens: Lengths
    suffix_tokens: Lengths
    output_tokens: Lengths
    groups: int = 1

    def __post_init__(self) -> None:
        """Refuse lengths that make a suffix or an output empty."""
        if self.groups < 1:
            raise WorkloadError(f"{self.name}: groups is {self.groups}, expected at least 1")
        if self.suffix_tokens.minimum < 1 or self.output_tokens.minimum < 1:
            raise WorkloadError(f"{self.name}: suffix and output must have at least 1 token")

    def draw(self, *, requests: int | None, seed: int, max_model_len: int) -> Drawn:
        """Return `requests` conversations of one turn each.

        A request longer than `max_model_len` is counted as `context_length` and replaced by the
        next draw. A larger draw from the same seed begins with the same requests. Raises
        `WorkloadError`.
        """
        return fitting_conversations(
            self.name,
            self._requests(seed),
            requests=requests,
            max_model_len=max_model_len,
            reason="context_length",
        )

    def describe(self) -> str:
        """Describe the requests in one line."""
        groups = "" if self.groups == 1 else f", {self.groups} groups in turn"
        return (
            f"{self.name}: shared prefix {self.prefix_tokens.describe()}"
            f" + suffix {self.suffix_tokens.describe()}"
            f" → output {self.output_tokens.describe()} tokens{groups}"
        )

    def _requests(self, seed: int) -> Iterator[tuple[Turn]]:
        """Yield requests endlessly."""
        prefixes = self._prefixes(seed)
        suffix_rng, output_rng = generator(seed, "suffix length"), generator(seed, "output length")
        for first in count(0, LENGTHS_A_TIME):
            numbers = range(first, first + LENGTHS_A_TIME)
            names = text_names(seed, "suffix", numbers)
            suffixes = self.suffix_tokens.draw(LENGTHS_A_TIME, suffix_rng).tolist()
            outputs = self.output_tokens.draw(LENGTHS_A_TIME, output_rng).tolist()
            for number, text, tokens, output in zip(numbers, names, suffixes, outputs, strict=True):
                prompt = (*prefixes[number % self.groups], Segment(text, tokens))
                yield (Turn(prompt=prompt, output_tokens=output),)

    def _prefixes(self, seed: int) -> list[tuple[Segment, ...]]:
        """Return the prefix of each group. A prefix of length 0 is empty."""
        lengths = self.prefix_tokens.draw(self.groups, generator(seed, "prefix length")).tolist()
        names = text_names(seed, "prefix", range(self.groups))
        pairs = zip(names, lengths, strict=True)
        return [(Segment(text, tokens),) if tokens else () for text, tokens in pairs]
