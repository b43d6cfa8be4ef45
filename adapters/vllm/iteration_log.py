"""What vLLM logs of each step, where it is started with --enable-logging-iteration-details.

Only there it reports how many prompts, or parts of them, a step had: its metrics count a prompt in
the step that ended it. So this alone shows that no prompt was split. It costs a log line a step, in
every arm, and is the author's choice (`extra_args`). Read and run: 0.32.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

# A log that is at least so long may lack its middle (`CappedLog` of the guard): its steps are not
# counted. It cuts at 100 MB, and leaves no less than 60.
_WHOLE_BYTES = 60_000_000

FLAG = "--enable-logging-iteration-details"
_LINE = re.compile(
    rb"Iteration\(\d+\): (\d+) context requests, \d+ context tokens, (\d+) generation requests"
)


class IterationLog:
    """The steps in a log that grows, read once each."""

    def __init__(self, path: Path) -> None:
        self.prompt_parts = 0  # prompts, or parts of them, over all steps
        self.mixed_steps = 0  # with prompts and decoding sequences
        self.whole = True  # False: the log is so long that steps may be missing
        self._path = path
        self._read_bytes = 0

    def read(self) -> None:
        """Take in what was written since the last time; a line that is not whole yet waits."""
        try:
            with self._path.open("rb") as log:
                self.whole = self.whole and os.fstat(log.fileno()).st_size < _WHOLE_BYTES
                log.seek(self._read_bytes)
                text = log.read()
        except OSError:  # no log, nothing to read
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for found in _LINE.finditer(whole):
            prompts, decoding = int(found[1]), int(found[2])
            self.prompt_parts += prompts
            self.mixed_steps += bool(prompts and decoding)
