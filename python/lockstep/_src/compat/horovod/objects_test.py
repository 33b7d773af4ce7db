"""Objects that were changed between the ranks are not unpickled."""

# Promise of this file (security.md): objects that were changed, recorded or swapped in transit are not unpickled.

from __future__ import annotations

import os

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from lockstep.named import broadcast_bytes
from lockstep.testing import call_workers

pytestmark = [pytest.mark.workers, pytest.mark.newest_only]  # the same on each TensorFlow


class MakesAFile:
    """Unpickled, it has made one."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def ends_otherwise(exchange):
    """Returns the exchange with another last byte in the result."""

    def changed(tensors, *args, **kwargs):
        (received,) = exchange(tensors, *args, **kwargs)
        if received.dtype == tf.uint8:
            received = tf.concat([received[:-1], received[-1:] ^ 1], 0)
        return [received]

    return changed


def objects_that_were_changed(folder):
    hvd.init()
    files = [os.path.join(folder, f"{what}.{hvd.rank()}") for what in ("sent", "changed")]
    sent, changed = (MakesAFile(file) for file in files)
    # It makes a file where it is unpickled, and does not where it was changed.
    hvd.broadcast_object(sent, 0)
    hvd.barrier()
    assert os.path.exists(os.path.join(folder, "sent.0"))
    if hvd.rank() == 1:
        named = broadcast_bytes.__globals__["named"]  # the exchanges below it
        named.broadcast, named.allgather = ends_otherwise(named.broadcast), ends_otherwise(named.allgather)
        with pytest.raises(tf.errors.DataLossError, match="^broadcast_object 'x': .*rank 1 got .* from rank 0 with"):
            hvd.broadcast_object(changed, 0, name="x")
        with pytest.raises(tf.errors.DataLossError, match="^allgather_object: .*rank 1 got .* from rank 1 with"):
            hvd.allgather_object(changed)
        assert not os.path.exists(os.path.join(folder, "changed.0"))
    else:
        hvd.broadcast_object(changed, 0, name="x")
        assert len(hvd.allgather_object(sent)) == 2
    hvd.barrier()
    hvd.shutdown()


def test_objects_that_were_changed_on_their_way_are_not_unpickled(tmp_path):
    call_workers(objects_that_were_changed, 2, str(tmp_path))
