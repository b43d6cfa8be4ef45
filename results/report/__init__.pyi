from .client_notes import client_mark
from .notes import engines
from .page import write_report
from .plot_list import SPEED, PlannedFigure, planned_figures
from .serving_block import serving_table
from .side_by_side import compared_engines, engine_kinds
from .tables import plain_table, print_within
from .terminal import print_summary

__all__ = [
    "SPEED",
    "PlannedFigure",
    "client_mark",
    "compared_engines",
    "engine_kinds",
    "engines",
    "plain_table",
    "planned_figures",
    "print_summary",
    "print_within",
    "serving_table",
    "write_report",
]
