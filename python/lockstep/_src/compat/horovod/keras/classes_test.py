import types

from lockstep._src.compat.horovod.keras.classes import callback_classes


class Counting:
    """Counts."""

    def count(self):
        return 1 + super().count()


class Saving(Counting):
    """Saves."""

    keras_base = "ModelCheckpoint"


def test_classes_extend_the_callbacks_of_the_given_keras():
    callback = type("Callback", (), {"count": lambda self: 10})
    checkpoint = type("ModelCheckpoint", (callback,), {"count": lambda self: 20})
    keras = types.ModuleType("keras")
    keras.callbacks = types.SimpleNamespace(Callback=callback, ModelCheckpoint=checkpoint)
    counts, saves = callback_classes(keras, "some.module", {"Counts": Counting, "Saves": Saving})
    assert (counts.__name__, counts.__module__, counts.__doc__) == ("Counts", "some.module", "Counts.")
    assert (saves.__name__, saves.__module__, saves.__doc__) == ("Saves", "some.module", "Saves.")
    assert isinstance(counts(), callback) and not isinstance(counts(), checkpoint) and isinstance(saves(), checkpoint)
    assert (counts().count(), saves().count()) == (11, 21)
