"""All benchmarks, one after the other: `python benchmarks` prints every table, in some 15 minutes.

Each is a script of its own with options of its own: simulator, cost, accuracy, scaling.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = ("simulator", "cost", "accuracy", "scaling")


def main() -> None:
    """Run them in turn; end with the first that fails."""
    for name in NAMES:
        print(f"\n== {name} ==", flush=True)
        script = Path(__file__).with_name(f"{name}.py")
        subprocess.run([sys.executable, str(script)], check=True)


if __name__ == "__main__":
    main()
