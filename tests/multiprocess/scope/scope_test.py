"""The scope's promises, on two workers."""

import pytest

from tests.multiprocess import promises

pytestmark = pytest.mark.oldest

WORKERS = ["scope.scope_worker", "scope.sharded_scope_worker", "scope.training_worker"]


@pytest.fixture(scope="module")
def output(request):
    return promises.run(request.param)


@pytest.mark.parametrize(
    ("output", "promise"), [(w, p) for w in WORKERS for p in promises.of(w)], indirect=["output"], scope="module"
)
def test_the_scope_keeps_its_promises_on_every_worker(output, promise):
    promises.assert_kept(output, promise)
