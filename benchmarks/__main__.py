"""Run all benchmarks in sequence: `python benchmarks` prints every table in about 15 minutes.

Each benchmark is also a script with its own options: simulator, cost, accuracy, scaling.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = ("simulator", "cost", "accuracy", "scaling")


def main() -> None:
    """Run the benchmarks in sequence. Stop at the first failure."""
    for name in NAMES:
        print(f"\n== {name} ==", flush=True)
        script = Path(__file__).with_name(f"{name}.py")
        subprocess.run([sys.executable, str(script)], check=True)


if __name__ == "__main__":
    main()
