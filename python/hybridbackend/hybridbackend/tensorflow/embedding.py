"""`hb.embedding`: dynamic tables, columns over them, and lookups of many tables, with the names that DeepRec has."""

from lockstep.embedding import *  # noqa: F403
from lockstep.embedding import __all__  # noqa: F401
