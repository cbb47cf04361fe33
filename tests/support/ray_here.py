"""Ray on this machine, for all tests of a module that imports the fixture."""

import contextlib
import gc

import pytest

from placeto_tf.errors import SetupError

ray = pytest.importorskip("ray", reason="Ray, an optional extra, is not installed")

from placeto_tf.problem.executors import LOCAL, executor_at  # noqa: E402

# Ray 2.51 leaves files open, and does not wait for processes that it has ended.
MARKS = [
  pytest.mark.filterwarnings("ignore::ResourceWarning"),
  pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module", name="on_ray")
def on_ray_fixture():
  with contextlib.ExitStack() as stack:
    stack.callback(gc.collect)  # what Ray leaves, while its warnings are ignored
    try:
      yield stack.enter_context(executor_at(LOCAL))
    except SetupError as error:
      pytest.skip(f"Ray does not start on this machine: {error}")
