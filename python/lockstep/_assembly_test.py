"""Public modules import the modules that register themselves with lower layers."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "program",
    [
        "import lockstep; lockstep.scope",
        "import lockstep.train",
        "import lockstep.embedding",
        "import lockstep.estimator",
        "import lockstep.keras",
    ],
)
def test_a_public_module_assembles_the_library(program):
    asked = f"import sys\n{program}\nassert 'lockstep._assembly' in sys.modules"
    subprocess.run([sys.executable, "-c", asked], check=True, timeout=300)
