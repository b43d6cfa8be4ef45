"""From stored records to metrics, statistics, effects and the summary.

A name is loaded when it is first used: pandas and scipy take a second, and the processes that send
a load need neither.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
