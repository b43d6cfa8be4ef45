"""Benchmark LLM serving engines: plan, run, prove, compare. The only package that knows the others."""

__version__ = "0.1.0"
