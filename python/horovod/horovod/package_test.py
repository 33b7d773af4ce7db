import pytest

import horovod

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


# Promise (horovod.md): an installation beside the original is refused.
@pytest.mark.parametrize("name", ["horovod-0.28.1.dist-info", "horovod-0.28.1-py3.11.egg-info", "horovod.egg-info"])
def test_the_original_beside_it_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(ImportError, match="the distribution horovod in .* keep one: pip uninstall horovod"):
        horovod._refuse_originals([str(tmp_path)])


def test_its_own_distribution_is_no_original(tmp_path):
    for name in ("lockstep_horovod-0.1.0.dist-info", "horovod_extras-1.0.dist-info"):
        (tmp_path / name).mkdir()
    horovod._refuse_originals([str(tmp_path)])


def test_programs_find_the_version_of_the_api():
    assert horovod.__version__ == "0.28.1"
