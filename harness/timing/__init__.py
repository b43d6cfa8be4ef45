"""Clocks, timers, and what keeps them exact.

Names are loaded when they are first used: a process that sends at exact times needs no event loop.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
