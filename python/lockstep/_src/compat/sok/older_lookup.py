"""The arguments of `lookup_sparse` in the versions of SOK 1.x, whose third argument had several meanings."""

from __future__ import annotations

from typing import Any

import numpy as np


def arguments(third: Any, combiners: Any) -> tuple[Any, Any]:
    """Returns weights and combiners.

    | third argument | since | meaning |
    | --- | --- | --- |
    | a number, or a list of numbers | 1.1.3 | the most keys of an example, which is not needed here |
    | a text, or a list of texts | 1.1.4 | the combiners |
    | a sparse or ragged tensor, or a list of them | 1.2 | weights |

    Args:
      third: the third argument of a call, or None.
      combiners: the fourth argument.

    Raises:
      TypeError: there are combiners in both arguments.
    """
    listed = third if isinstance(third, (list, tuple)) else [third]
    if listed and all(isinstance(one, (int, np.integer)) and not isinstance(one, bool) for one in listed):
        return None, combiners
    if listed and all(isinstance(one, (str, bytes)) for one in listed):
        if combiners is not None:
            raise TypeError(f"lookup_sparse: got combiners twice, {third!r} and {combiners!r}")
        return None, third
    return third, combiners
