"""Set before TensorFlow is first imported: the legacy Keras, no GPU, quiet logs; and a cache of
costs of its own, so that tests neither use nor fill the user's."""

import atexit
import collections
import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

import pytest

from placeto_tf.errors import SetupError
from placeto_tf.files import outputs
from placeto_tf.problem.search_log import SearchLog
from placeto_tf.runtime import loopback

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# oneDNN joins ops that share a device, so results would depend on the placement in the last bits;
# tests/placements/proof_test.py compares bits and needs it off.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("MPLBACKEND", "agg")
# Compiled loops, which are the same in all runs, are kept. Workers of pytest-xdist inherit it.
if "NUMBA_CACHE_DIR" not in os.environ:
  os.environ["NUMBA_CACHE_DIR"] = outputs.cache_folder("tests")
  try:
    outputs.make_private(os.environ["NUMBA_CACHE_DIR"])
  except (OSError, SetupError):
    os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp(prefix="placeto_tf_compiled_")
    atexit.register(shutil.rmtree, os.environ["NUMBA_CACHE_DIR"], ignore_errors=True)
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="placeto_tf_tests_")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

# TensorFlow and its graphs are millions of objects that Python's collector looks through again and
# again: a fifth of the suite's CPU time at the default of 700.
gc.set_threshold(50_000, 20, 100)

# A shell starts background jobs with SIGINT ignored, nohup with SIGHUP, and so would be whatever
# tests start.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
  if signal.getsignal(_number) is signal.SIG_IGN:
    signal.signal(_number, _handler)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session):
  """Compiles what most tests need before pytest-xdist starts processes for the whole suite.

  Otherwise each of these processes, and each program that they start, would compile it. A process
  for each event loop; where the code is there, this takes seconds.
  """
  config = session.config
  whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
  if not whole or not config.getoption("numprocesses", 0) or hasattr(config, "workerinput"):
    return
  running = [subprocess.Popen(
      [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-k", engine,
       os.path.join(os.path.dirname(__file__), "placing", "compiling_ahead_test.py")],
      stdout=subprocess.DEVNULL) for engine in ("ReferenceEngine", "ExtendedEngine")]
  for process in running:
    process.wait()


@pytest.fixture(scope="session")
def socket_filters():
  """Skips where this user may attach no filter to a socket: workers then refuse to start."""
  with socket.socket() as server:
    try:
      loopback.attach(server)
    except OSError as error:
      pytest.skip(f"no filters for sockets here ({error.strerror})")


# Files that take longest, each as a whole in one process: they begin first, so that all processes
# end together.
_DEAREST = (
    "placing/compile_step_test.py", "placing/compiling_test.py", "policies/ray_training_test.py",
    "placing/settings_of_programs_test.py", "problem/executors_test.py",
    "replication/constructs_test.py", "replication/keras_constructs_test.py",
    "placements/keras_proof_test.py", "examples_test.py",
    "policies/placeto/published/training_test.py", "runtime/workers_test.py",
    "runtime/comparing_test.py", "policies/baselines/gdp_search_test.py",
    "runtime/side_by_side_test.py", "replication/ordinary_models_test.py",
    "scripts/train_test.py", "placing/apply_test.py",
    "runtime/measuring_test.py", "placements/placed_functions_test.py",
    "evaluation/host_check_test.py", "policies/resume_test.py", "placing/what_now_test.py",
    "placements/proof_test.py", "policies/placeto/network_test.py")


def pytest_collection_modifyitems(items):
  rank = {name: i for i, name in enumerate(_DEAREST)}
  items.sort(key=lambda item: rank.get(  # stable: all others stay in their order
      item.nodeid.partition("::")[0].partition("tests/")[2], len(rank)))


def pytest_collection_finish():
  gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
  """Three for every two cores: two fifths of the time tests wait, for programs that they start."""
  return max(1, 3 * (os.cpu_count() or 1) // 2)


def pytest_addoption(parser):
  parser.addoption("--mutants", type=int, default=60, metavar="N",
                   help="mutants of each kind of file that tests/robustness tries")


@pytest.fixture
def clock_of_looks(monkeypatch):
  """Each search log has a clock that moves by a millisecond whenever somebody looks at it.

  So what a limit of time does depends on how often searches look, not on the machine.
  """
  looks = collections.Counter()

  def seconds(search_log):
    looks[search_log] += 1
    return 1e-3 * looks[search_log]

  monkeypatch.setattr(SearchLog, "seconds", property(seconds))


@pytest.fixture
def signal_handlers_kept():
  """For programs that run in this process and set handlers of their own."""
  handlers = {number: signal.getsignal(number)
              for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
  yield
  for number, handler in handlers.items():
    signal.signal(number, handler)
