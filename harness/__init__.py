"""Benchmark LLM serving engines: plan, run, prove, compare. Alone knows the other packages."""

__version__ = "0.1.0"
