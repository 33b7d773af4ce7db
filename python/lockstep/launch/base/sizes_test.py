import pytest

from lockstep.launch.base.sizes import size_of

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (1 << 20, "1 MiB"),
        (150.4 * 2**20, "150 MiB"),
        (2**41, "2048 GiB"),
    ],
)
def test_sizes_are_short(number, shown):
    assert size_of(number) == shown
