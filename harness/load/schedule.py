"""When load is sent: a number of users who wait for answers, or starts at set times."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """`concurrency` conversations alive, think time included; one that ends starts the next.

    The slots start one after the other over `ramp_ns`, the service time of one request on an idle
    engine, so that the first answers do not all end together.
    """

    concurrency: int
    ramp_ns: int = 0

    def __post_init__(self) -> None:
        """Refuse what no load can be."""
        if self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {self.concurrency}")
        if self.ramp_ns < 0:
            raise ValueError(f"ramp_ns must not be negative, got {self.ramp_ns}")

    def slots(self, conversations: int) -> Slots:
        """Return when each slot starts; there are no more slots than conversations."""
        slots = min(self.concurrency, conversations)
        return Slots(starts_ns=tuple(slot * self.ramp_ns // slots for slot in range(slots)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """A closed loop slot by slot: each starts at its time, and plays until nothing is left."""

    starts_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """Conversation i starts at `starts_ns[i]`, whatever the answers before it do.

    `max_concurrency` bounds the conversations alive. One that has to wait for its place keeps its
    scheduled time, so that the wait is seen as latency.
    """

    starts_ns: tuple[int, ...]
    max_concurrency: int | None = None

    def __post_init__(self) -> None:
        """Refuse times that cannot be kept one after the other."""
        if any(time_ns < 0 for time_ns in self.starts_ns[:1]):
            raise ValueError(f"a start must not be negative, got {self.starts_ns[0]} ns")
        if any(b < a for a, b in zip(self.starts_ns, self.starts_ns[1:], strict=False)):
            raise ValueError("starts_ns must be in order")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ValueError(f"max_concurrency must be at least 1, got {self.max_concurrency}")


Schedule = ClosedLoop | Slots | OpenLoop
