"""`hb.distribute`: names of HybridBackend's collectives."""

from lockstep.distribute import *  # noqa: F403
from lockstep.distribute import __all__  # noqa: F401
