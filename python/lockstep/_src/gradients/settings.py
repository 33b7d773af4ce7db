"""The settings of an exchange of gradients."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from lockstep._src.collectives import named
from lockstep._src.collectives.lanes import Ranks


class Compressor(Protocol):
    """The way in which gradients are compressed before they are sent, and decompressed afterwards."""

    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the tensor to send, and a context for `decompress`."""

    def decompress(self, tensor: tf.Tensor, context: Any) -> tf.Tensor:
        """Returns the received tensor in its original form."""


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The settings of an exchange of gradients.

    Attributes:
      ranks: the ranks that exchange in the named lane. On other processes gradients stay unchanged. None: all workers
        of the job, in the ordered lane.
      reduction: one of `named.REDUCTIONS`; slices support only "mean" and "sum".
      predivide_factor: for a mean, gradients are divided by this factor before they are summed, and multiplied by it
        afterwards.
      compression: compresses gradients; None: they are sent unchanged.
      sparse_as_dense: whether slices are made dense first.
      groups: a group is sent when all of its gradients are ready. The number of groups, or lists of variables; each
        other variable is a group of its own. None: each gradient by itself.
      buckets: in place of groups, the number of buckets of about equal size for dense gradients.
      weighs_rows: whether gradients are weighted by this worker's rows of the batches from which they are computed.
      unique_rows: whether slices are returned as a program is to see them in a scope: summed by row.
      scale_local: whether gradients of local variables are divided by the number of ranks. They are then those of the
        mean of all ranks' losses, if the variables' inputs come from all ranks. Gradients of tables are divided only if
        they are sums and the reduction is "mean".
      passes: the number of calls over which gradients are summed before they are exchanged.
      average_passes: whether they are averaged instead.
      device_dense: the device on which dense gradients are exchanged; "": any.
      device_sparse: the device on which slices are exchanged; "": any.
    """

    ranks: Ranks | None
    reduction: str = "mean"
    predivide_factor: float = 1.0
    compression: Compressor | None = None
    sparse_as_dense: bool = False
    groups: int | Sequence[Sequence[Any]] | None = None
    scale_local: bool = True
    passes: int = 1
    average_passes: bool = False
    device_dense: str = ""
    device_sparse: str = ""
    buckets: int | None = None
    weighs_rows: bool = False
    unique_rows: bool = False

    def __post_init__(self) -> None:
        if self.reduction not in named.REDUCTIONS:
            raise ValueError(f"reduction is {self.reduction!r}, wanted one of {', '.join(named.REDUCTIONS)}")
        if self.predivide_factor != 1.0 and self.reduction != "mean":
            raise ValueError(
                f"predivide_factor is {self.predivide_factor}, wanted 1 for {self.reduction}: it divides a mean"
            )
        factor = self.predivide_factor
        if not (isinstance(factor, numbers.Real) and math.isfinite(factor) and factor != 0):
            raise ValueError(f"predivide_factor is {factor!r}, wanted a number that is finite and not 0")
        if not (isinstance(self.passes, numbers.Integral) and self.passes >= 1):
            raise ValueError(f"passes is {self.passes!r}, wanted a whole number, at least 1")
        if isinstance(self.groups, int) and self.groups < 1:
            raise ValueError(f"groups is {self.groups}, wanted at least 1, or lists of variables")
