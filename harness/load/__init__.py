"""Send a load: request sets, start times, and the processes that send them.

What needs an HTTP client is loaded when it is first used: a plan draws request sets only.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
