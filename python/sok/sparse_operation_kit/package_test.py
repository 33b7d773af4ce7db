import pytest

import sparse_operation_kit

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


# Promise (sok.md): an installation beside the original is refused.
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("merlin_sok-2.0.0.dist-info", "merlin-sok"),
        ("merlin-sok-1.3.0-py3.8-linux-x86_64.egg-info", "merlin-sok"),
        ("merlin.sok-1.2.1.dist-info", "merlin.sok"),
        ("sparse_operation_kit-1.1.4.dist-info", "sparse-operation-kit"),
        ("sparse_operation_kit.egg-info", "sparse-operation-kit"),
    ],
)
def test_the_original_beside_it_is_refused(tmp_path, file, name):
    (tmp_path / file).mkdir()
    with pytest.raises(ImportError, match=f"the distribution {name} in .* keep one: pip uninstall {name}"):
        sparse_operation_kit._refuse_originals([str(tmp_path)])


def test_its_own_distribution_is_no_original(tmp_path):
    for name in ("lockstep_sok-0.1.0.dist-info", "merlin_sok_extras-1.0.dist-info", "merlin_core-23.8.dist-info"):
        (tmp_path / name).mkdir()
    sparse_operation_kit._refuse_originals([str(tmp_path)])


def test_programs_find_the_version_of_the_api():
    assert sparse_operation_kit.__version__ == "2.1.0"
    assert [type(number) for number in sparse_operation_kit.tf_version] == [int, int, int]
