import pytest

from lockstep._src.compat.originals import refuse_distribution, refuse_tensorflow

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        ("hybridbackend_tf115_cpu-0.6.dist-info", "hybridbackend-tf115-cpu"),
        ("hybridbackend_tf115_cpu-0.6-py3.6.egg-info", "hybridbackend-tf115-cpu"),
        ("hybridbackend.egg-info", "hybridbackend"),
    ],
)
def test_a_distribution_of_the_same_package_is_refused_with_its_name(tmp_path, metadata, name):
    (tmp_path / metadata).mkdir()
    with pytest.raises(ImportError, match=f"the distribution {name} in .* keep one: pip uninstall {name} "):
        refuse_distribution("hybridbackend", r"hybridbackend\w*", [str(tmp_path / "nowhere"), str(tmp_path)])


@pytest.mark.parametrize("metadata", ["lockstep_hybridbackend-0.1.0.dist-info", "hybridbackend-0.6.txt"])
def test_others_stay(tmp_path, metadata):
    (tmp_path / metadata).mkdir()
    refuse_distribution("hybridbackend", r"hybridbackend\w*", [str(tmp_path)])


def test_a_fork_of_tensorflow_is_refused_by_a_file(tmp_path):
    refuse_tensorflow("DeepRec", "lockstep-deeprec", "tensorflow/its_own.py", [str(tmp_path)])
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "its_own.py").touch()
    with pytest.raises(ImportError, match="is DeepRec's, .* pip uninstall lockstep-deeprec"):
        refuse_tensorflow("DeepRec", "lockstep-deeprec", "tensorflow/its_own.py", [str(tmp_path)])
