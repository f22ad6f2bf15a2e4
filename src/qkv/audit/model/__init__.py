"""A whole model under audit: what its outputs may not depend on. The front is `leaks`."""

from .ask import leaks, wanted
from .found import Leak, Leaks

__all__ = ["Leak", "Leaks", "leaks", "wanted"]
