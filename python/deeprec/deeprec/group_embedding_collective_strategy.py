"""`tensorflow.python.distribute.group_embedding_collective_strategy`, as DeepRec's programs import it."""

from lockstep.train import CollectiveStrategy

__all__ = ["CollectiveStrategy"]
