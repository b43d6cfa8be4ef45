"""Compare the embedded engine's predicted times with measured times.

    python benchmarks/prediction.py FOLDER [--all] [--write FILE]

FOLDER contains tables of kernel times on A100 and published values; `kernel_tables.py` lists them.
Prints each predicted value, measured value and error. Then prints for each kind and source the
number of values, the median error, the worst error and the number within the aim. `--all` prints
every row (default: the ten worst of each kind). `--write` stores the values as a CSV file.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

from kernel_tables import KernelTables

from harness.adapters.base import EngineError
from harness.adapters.embedded.published import UNITS, PublishedValue, predicted

AIM_PERCENT = {"decode": 8, "prefill": 10, "first_token": 10, "batch": 15, "between_tokens": 8}
_WORST = 10


class Compared:
    """A published value and its prediction."""

    def __init__(self, published: PublishedValue) -> None:
        self.published = published
        self.ours = predicted(published)
        self.error_percent = 100 * (self.ours / published.value - 1)

    def line(self) -> str:
        """The row of the table."""
        name, unit = self.published.name, UNITS[self.published.kind]
        return (
            f"{name[:62]:62} {self.ours:9.1f} {self.published.value:9.1f} {unit:8} "
            f"{self.error_percent:+6.1f} %"
        )


def compared(values: list[PublishedValue]) -> list[Compared]:
    """Return a comparison for each value that the engine can predict."""
    rows = []
    for published in values:
        try:
            rows.append(Compared(published))
        except EngineError as error:
            print(f"skipped: {published.name}: {error}"[:100])
    return rows


def summary(rows: list[Compared]) -> list[str]:
    """Return a line for each kind, source and number of GPUs."""
    groups: dict[tuple[str, str, str], list[Compared]] = defaultdict(list)
    for row in rows:
        place = f"{row.published.model} x{row.published.gpus}"
        groups[row.published.kind, row.published.source, place].append(row)
    lines = [f"{'':62} {'rows':>5} {'median':>8} {'worst':>8} {'in aim':>8}"]
    for (kind, source, place), group in groups.items():
        errors = [abs(row.error_percent) for row in group]
        within = sum(error <= AIM_PERCENT[kind] for error in errors)
        lines.append(
            f"{f'{kind}, {source}, {place}'[:62]:62} {len(group):5} "
            f"{statistics.median(errors):6.1f} % {max(errors):6.1f} % {within:8}"
        )
    return lines


def write(values: list[PublishedValue], path: Path) -> None:
    """Write the values to a CSV file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(values[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(published) for published in values)


def main() -> None:
    """Print the table and the summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder with the tables")
    parser.add_argument("--all", action="store_true", dest="every", help="print every row")
    parser.add_argument("--write", type=Path, help="CSV file for the values")
    arguments = parser.parse_args()
    values = list(KernelTables(arguments.folder).values())
    if not values:
        parser.error(f"{arguments.folder} contains no table; the folder needs at least one")
    if arguments.write:
        write(values, arguments.write)
    rows = compared(values)
    print(f"{'value':62} {'predicted':>9} {'measured':>9} {'':8} {'error':>8}")
    for kind in UNITS:
        shown = [row for row in rows if row.published.kind == kind]
        if not arguments.every:
            shown = sorted(shown, key=lambda row: -abs(row.error_percent))[:_WORST]
        for row in shown:
            print(row.line())
    print("\n".join(["", *summary(rows)]))


if __name__ == "__main__":
    main()
