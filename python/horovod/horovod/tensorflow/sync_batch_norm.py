"""`hvd.SyncBatchNormalization`. Imports Keras."""

from lockstep._src.compat.horovod.sync_batch_norm import SyncBatchNormalization

__all__ = ["SyncBatchNormalization"]
