"""A damaged run is taken up from an older checkpoint, or refused; it never begins again unasked."""

import pathlib
import shutil

import numpy as np
import pytest

from placeto_tf.environments.problems import with_starts
from placeto_tf.environments.schedule import Schedule
from placeto_tf.errors import PlacetoError
from placeto_tf.policies.placeto.training import PlacetoTraining, PlacetoTrainingConfig
from placeto_tf.training import runs
from placeto_tf.training.checkpoints import Checkpoints
from placeto_tf.training.trainer import Trainer
from random_problem import random_problem

import tensorflow as tf  # isort: skip

pytestmark = pytest.mark.usefixtures("eager_module")

CONFIG = PlacetoTrainingConfig(
    graphs=("a",), clusters=("k80:3",), iterations=8, checkpoint_every=2, watch_every=8, width=8,
    steps=2, batch=8, arms=32, capacity=64,
    schedule=Schedule(rounds=(16,), levels=(0.5,)))


def trainer(root_dir):
  problem = with_starts(random_problem(num_ops=40, num_groups=8, devices="k80:3", seed=0))
  return Trainer(PlacetoTraining, CONFIG, str(root_dir), problems=[problem], held_out=[problem])


@pytest.fixture(name="stopped", scope="module")
def stopped_fixture(tmp_path_factory):
  """A run with checkpoints of iterations 4 and 6."""
  root = tmp_path_factory.mktemp("run")
  trainer(root).run(until=7)
  assert {path.name for path in (root / "train").glob("ckpt-*.index")} == {
      "ckpt-4.index", "ckpt-6.index"}
  return root


@pytest.fixture(name="whole", scope="module")
def whole_fixture(tmp_path_factory):
  whole = trainer(tmp_path_factory.mktemp("whole"))
  whole.run()
  return whole.learner.weights


@pytest.fixture(name="run")
def run_fixture(stopped, tmp_path):
  shutil.copytree(stopped, tmp_path / "run")
  return tmp_path / "run"


def contents(root):
  return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*")
          if path.is_file() and "events" not in path.name}


def damage(path, how):
  content = path.read_bytes()
  if how == "cut":
    content = content[:len(content) // 2]
  elif how == "empty":
    content = b""
  elif how == "changed":
    content = content[:len(content) // 2] + bytes([content[len(content) // 2] ^ 1]) + content[
        len(content) // 2 + 1:]
  path.write_bytes(content)
  if how == "gone":
    path.unlink()


@pytest.mark.parametrize("how", ["cut", "empty", "changed", "gone"])
@pytest.mark.parametrize("part", ["index", "data-00000-of-00001"])
def test_a_damaged_checkpoint_costs_the_iterations_since_the_one_before(run, whole, how, part):
  damage(run / "train" / f"ckpt-6.{part}", how)
  resumed = trainer(run)
  assert resumed.iteration == 4
  if (part, how) != ("index", "cut"):
    return  # one run to the end will do
  resumed.run()
  for one, other in zip(whole.arrays, resumed.learner.weights.arrays):
    np.testing.assert_array_equal(one, other)


def refused(run, said):
  """The run is not resumed, which changes nothing in it."""
  before = contents(run)
  with pytest.raises(PlacetoError, match=said):
    trainer(run)
  assert contents(run) == before


@pytest.mark.parametrize("junk", [
    b"", b"\xff\xfe\x00", b'model_checkpoint_path: "/elsewhere/ckpt-900"', None])
def test_junk_where_tensorflow_lists_its_checkpoints_does_not_begin_the_run_again(run, junk):
  notes = run / "train" / "checkpoint"
  notes.unlink() if junk is None else notes.write_bytes(junk)
  refused(run, "none of the checkpoints")


def test_without_a_checkpoint_that_can_be_read_nothing_is_touched(run):
  for path in (run / "train").glob("ckpt-*.index"):
    damage(path, "changed")
  refused(run, "none of the checkpoints.*ckpt-6.*ckpt-4")


@pytest.mark.parametrize("kept, said", [
    (("config.json", "weights"), "checkpoints are gone"), (("weights",), "config.json.*No such"),
    (("train",), "config.json.*No such")])
def test_part_of_a_run_is_not_begun_again(run, kept, said):
  for path in run.iterdir():
    if path.name not in kept:
      shutil.rmtree(path) if path.is_dir() else path.unlink()
  refused(run, said)


@pytest.mark.parametrize("content", [
    "[]", "{", '{"figures": {}}', '{"figures": {"loss": "x"}, "iterations": 1}'])
def test_a_damaged_end_of_a_run_is_named(run, content):
  (run / "done.json").write_text(content)
  with pytest.raises(PlacetoError, match="done.json.*delete it"):
    runs.finished(str(run), CONFIG.to_json())


def test_state_comes_back_with_integers_of_any_size(tmp_path):
  state = {"rng": np.random.default_rng(0).bit_generator.state, "text": "ü"}
  Checkpoints(str(tmp_path), {}, variable=tf.Variable(1.0)).save(3, state)
  variable = tf.Variable(0.0)
  found = Checkpoints(str(tmp_path), {}, variable=variable)
  assert found.restored and found.state == state and variable.numpy() == 1.0
  assert pathlib.Path(tmp_path, "checkpoint").exists()
