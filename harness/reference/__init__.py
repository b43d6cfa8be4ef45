"""The reference server, which has known token times, and the client measured against it.

Names are loaded on first use, so that the server process starts with few imports.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
