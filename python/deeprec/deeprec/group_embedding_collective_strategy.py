"""What DeepRec's programs import from `tensorflow.python.distribute.group_embedding_collective_strategy`."""

from lockstep.train import CollectiveStrategy

__all__ = ["CollectiveStrategy"]
