"""Settings of an exchange of gradients."""

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
    """The way gradients are changed before they travel, and back."""

    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns what travels, and what `decompress` needs to know."""

    def decompress(self, tensor: tf.Tensor, context: Any) -> tf.Tensor:
        """Returns the tensor that came, as it was before."""


@dataclasses.dataclass(frozen=True)
class Exchange:
    """How gradients are exchanged.

    Attributes:
      ranks: which exchange, in the named lane. On a process that is not one of them gradients stay as they are. None:
        all workers of the job, in the ordered lane.
      reduction: one of `named.REDUCTIONS`; slices know "mean" and "sum".
      predivide_factor: of a mean, gradients are divided by so much before they are summed, and multiplied behind it.
      compression: what travels; None: the gradients themselves.
      sparse_as_dense: slices are made dense before.
      groups: what is all there before any of it travels: into how many groups gradients are divided, or lists of
        variables, where others are a group each. None: each by itself.
      buckets: in place of groups, into how many buckets of about equal size dense gradients are cut.
      weighs_rows: gradients count as much as this worker has rows of the batches that they are computed from.
      scale_local: gradients of local variables are divided by the number of ranks: they are of a mean as well, where
        what they are computed from came from all ranks.
      passes: over how many calls gradients are summed before they are exchanged.
      average_passes: they are averaged instead.
      device_dense: where dense gradients are exchanged; "": wherever.
      device_sparse: where slices are.
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

    def __post_init__(self) -> None:
        if self.reduction not in named.REDUCTIONS:
            raise ValueError(f"reduction is {self.reduction!r}, wanted one of {', '.join(named.REDUCTIONS)}")
        if self.predivide_factor != 1.0 and self.reduction != "mean":
            raise ValueError(
                f"predivide_factor is {self.predivide_factor}, which is of a mean, not of {self.reduction}"
            )
        factor = self.predivide_factor
        if not (isinstance(factor, numbers.Real) and math.isfinite(factor) and factor != 0):
            raise ValueError(f"predivide_factor is {factor!r}, wanted a number that is finite and not 0")
        if not (isinstance(self.passes, numbers.Integral) and self.passes >= 1):
            raise ValueError(f"passes is {self.passes!r}, wanted a whole number, at least 1")
        if isinstance(self.groups, int) and self.groups < 1:
            raise ValueError(f"groups is {self.groups}, wanted at least 1, or lists of variables")
