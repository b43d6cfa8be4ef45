"""`harness diagnose`: where the runs of a stored sweep lose their time. Needs no engine."""

from __future__ import annotations

import argparse
import json
import sys

from harness.commands.sweeps import checked_folder, exit_code
from harness.output import printing
from harness.results.diagnosis import diagnosis, diagnosis_lines


def diagnose(arguments: argparse.Namespace) -> int:
    """Print what holds each run back; return what the runs came to, as `harness report` does."""
    found = diagnosis(checked_folder(arguments.directory))
    with printing():
        if arguments.json:
            text = json.dumps(found.document(), indent=1, allow_nan=False)
        else:
            text = "\n".join(diagnosis_lines(found))
        sys.stdout.write(f"{text}\n")
    return exit_code(run.status for run in found.summary.runs)
