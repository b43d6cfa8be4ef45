"""A server whose token times are known, and the client measured against it.

Names are loaded when they are first used: the server process imports nothing heavy.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
