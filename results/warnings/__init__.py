"""The closed list of reasons to distrust a run."""

from harness.results.warnings.backlog import backlog_of
from harness.results.warnings.cache_checks import cache_notes
from harness.results.warnings.checks import run_warnings, too_many_failed
from harness.results.warnings.failure_samples import failure_lines, one_line, sample_failures
from harness.results.warnings.flip_checks import other_versions, same_settings
from harness.results.warnings.load_checks import more_sequences, peak_in_flight
from harness.results.warnings.unlike_runs import NAME, find_unlike_runs, prompt_tokens_each

__all__ = [
    "NAME",
    "backlog_of",
    "cache_notes",
    "failure_lines",
    "find_unlike_runs",
    "more_sequences",
    "one_line",
    "other_versions",
    "peak_in_flight",
    "prompt_tokens_each",
    "run_warnings",
    "same_settings",
    "sample_failures",
    "too_many_failed",
]
