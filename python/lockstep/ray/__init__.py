"""Jobs of Ray Train: the configuration with which a `TensorflowTrainer` starts workers of one job (docs/ray.md).

It needs `pip install 'ray[train]'`.
"""

from lockstep.ray.config import LockstepConfig

__all__ = ["LockstepConfig"]
