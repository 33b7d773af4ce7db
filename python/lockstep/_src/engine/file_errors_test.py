"""Tests that errors of saving have classes on which every session fails."""

import errno
import resource

import pytest
import tensorflow as tf

from lockstep._src.engine import file_errors

_FULL = "/a/model.ckpt-1.index; File too large"


@pytest.mark.parametrize(
    ("given", "raised"),
    [
        (tf.errors.OutOfRangeError, tf.errors.ResourceExhaustedError),
        (tf.errors.AbortedError, tf.errors.InternalError),
        (tf.errors.UnavailableError, tf.errors.InternalError),
        (tf.errors.PermissionDeniedError, tf.errors.PermissionDeniedError),
    ],
)
def test_no_error_is_of_a_class_that_sessions_do_not_raise(given, raised):
    with pytest.raises(raised) as caught, file_errors.raised_on_all("checkpoint /a"):
        raise given(None, None, f"{_FULL}\n\t [[{{{{node save/SaveV2}}}}]]")
    assert type(caught.value) is raised
    assert caught.value.message == f"checkpoint /a: {_FULL}"


def test_what_failed_is_said_once():
    with (
        pytest.raises(tf.errors.ResourceExhaustedError) as caught,
        file_errors.raised_on_all("the hook"),
        file_errors.raised("an export"),
        file_errors.raised_on_all("checkpoint /a"),
    ):
        raise tf.errors.OutOfRangeError(None, None, _FULL)
    assert caught.value.message == f"checkpoint /a: {_FULL}"


def test_the_first_of_several_causes_is_said():
    several = f"2 root error(s) found.\n  (0) OUT_OF_RANGE: {_FULL}\n\t [[node]]\n  (1) OUT_OF_RANGE: another\n"
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught, file_errors.raised_on_all("checkpoint /a"):
        raise tf.errors.OutOfRangeError(None, None, several)
    assert caught.value.message == f"checkpoint /a: {_FULL}"


def test_an_operation_of_a_session_gives_its_own_words(tmp_path):
    path = str(tmp_path / "file")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        write = tf.io.write_file(path, "x" * 10_000)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        with pytest.raises(tf.errors.ResourceExhaustedError) as caught, file_errors.raised_on_all("the file"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
            try:
                session.run(write)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.message == f"the file: {path}; File too large"


def test_an_error_of_python_keeps_its_class_and_says_what_failed():
    said = "chain.json cannot be written: OSError: .*File too large"
    with pytest.raises(OSError, match=said) as caught, file_errors.raised_on_all("chain.json cannot be written"):
        raise OSError(errno.EFBIG, "File too large")
    assert caught.value.errno == errno.EFBIG


def test_errors_of_arguments_stay_as_they_are():
    error = ValueError("max_to_keep is -1")
    with pytest.raises(ValueError) as caught, file_errors.raised_on_all("checkpoint /a"):
        raise error
    assert caught.value is error


def test_other_errors_pass_where_only_the_class_matters():
    error = tf.errors.NotFoundError(None, None, "no such file")
    with pytest.raises(tf.errors.NotFoundError) as caught, file_errors.raised("an export"):
        raise error
    assert caught.value is error
