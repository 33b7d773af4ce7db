"""What tests of the launcher start from."""

import pytest

from lockstep.testing import launching

launch = pytest.fixture(launching.launchers)
