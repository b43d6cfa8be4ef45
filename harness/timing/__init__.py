"""Clocks, timers, process priority and control of the garbage collector.

Names are loaded on first use, because the reference server needs no event loop.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
