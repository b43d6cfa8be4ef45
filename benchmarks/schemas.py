"""Write `docs/manifest.schema.json` and `docs/summary.schema.json` from the types of the store.

Run `python benchmarks/schemas.py` after a change of these types. A test fails until then.
"""

from __future__ import annotations

import json
from pathlib import Path

from harness.results.store.manifest import manifest_schema
from harness.results.summary import summary_schema

DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    """Write both files."""
    for name, schema in (("manifest", manifest_schema()), ("summary", summary_schema())):
        path = DOCS / f"{name}.schema.json"
        path.write_text(json.dumps(schema, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
