"""The metrics of other load generators, computed from our records to explain a difference."""

from harness.results.dialects.block import dialect_block
from harness.results.dialects.document import DialectReport, dialect_report
from harness.results.dialects.tools import DIALECTS

__all__ = ["DIALECTS", "DialectReport", "dialect_block", "dialect_report"]
