"""The examples with Horovod's API, run with the commands beside them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.scripts.documents import run_launcher

EXAMPLES = Path(__file__).parents[2] / "examples"


# Promise (horovod.md): the examples learn.
@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("tensorflow", "-np 2 --tf1 python tensorflow_mnist.py --steps 600"),
        # horovod_data_service_test.py runs its sibling.
        pytest.param("tensorflow2", "-np 2 python tensorflow2_mnist.py --steps 400", marks=pytest.mark.long),
        # Only this example could fail with another Keras.
        pytest.param("tensorflow2", "-np 2 python tensorflow2_keras_mnist.py --epochs 2", marks=pytest.mark.oldest),
    ],
)
def test_an_example_learns(folder, line):
    words = [sys.executable if word == "python" else word for word in line.split()]
    command = [sys.executable, "-m", "horovod.runner", *words]
    outputs = run_launcher(command, EXAMPLES / folder, 2, {"CUDA_VISIBLE_DEVICES": ""})
    found = [re.search(r"^rank \d: accuracy (\S+)$", output, re.M).group(1) for output in outputs]
    # Both workers have the same model.
    assert found[0] == found[1] and float(found[0]) > 0.9
