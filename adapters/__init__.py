"""How to start and stop serving engines, and an embedded one that needs no GPU."""

from adapters.embedded.adapter import EmbeddedAdapter

ENGINES = {"embedded": EmbeddedAdapter}
