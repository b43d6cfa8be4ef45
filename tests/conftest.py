"""What every test starts from, wherever it is run."""

from __future__ import annotations

import signal

# A shell starts what it puts into the background with SIGINT ignored, and that is inherited: the
# tests that interrupt would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
