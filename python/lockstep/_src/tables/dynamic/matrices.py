"""Refuses methods of TensorFlow's variables that need a matrix; a dynamic table has no fixed number of rows."""

from __future__ import annotations

from typing import Any, NoReturn

_VALUE = ("value as a matrix", "look keys up, export(), save_weights(), or leave it out of a list of variables")
_INSERT = "insert() takes keys and rows"
_NOT_FOR_TABLES = {
    **dict.fromkeys(
        ("value", "read_value", "read_value_no_copy", "numpy", "_dense_var_to_tensor", "_read_variable_op"), _VALUE
    ),
    **{
        name: (name, _INSERT)
        for name in (
            "assign",
            "assign_add",
            "assign_sub",
            "load",
            "batch_scatter_update",
            "_strided_slice_assign",
            *(f"scatter_{how}" for how in ("add", "sub", "update", "max", "min", "mul", "div")),
            *(f"scatter_nd_{how}" for how in ("add", "sub", "update", "max", "min")),
        )
    },
    "_export_to_saved_model_graph": (
        "tf.saved_model.save",
        "lockstep.keras.export writes a SavedModel of a Keras model, hb.train.export one of a checkpoint",
    ),
    "__deepcopy__": ("copy.deepcopy", "make another table and insert what this one exports"),
}


class NotAMatrix:
    """Base of TensorFlow variables that are not matrices: methods that need one raise NotImplementedError."""

    @property
    def logical_name(self) -> str:
        """The name of the table."""
        raise NotImplementedError

    @property
    def initial_value(self) -> NoReturn:
        """Raises NotImplementedError."""
        self._refuse("initial_value", "every key has its own")

    def _refuse(self, what: str, instead: str) -> NoReturn:
        raise NotImplementedError(f"table '{self.logical_name}' is dynamic and does not support {what}; {instead}")


def _refusing(what: str, instead: str) -> Any:
    def refuse(self: NotAMatrix, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse(what, instead)

    refuse.__doc__ = "Raises NotImplementedError."
    return refuse


for _method, _refusal in _NOT_FOR_TABLES.items():
    setattr(NotAMatrix, _method, _refusing(*_refusal))
