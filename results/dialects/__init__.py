"""Our records by the formulas of other load generators, to explain a disagreement."""

from harness.results.dialects.block import dialect_block
from harness.results.dialects.document import DialectReport, dialect_report
from harness.results.dialects.tools import DIALECTS

__all__ = ["DIALECTS", "DialectReport", "dialect_block", "dialect_report"]
