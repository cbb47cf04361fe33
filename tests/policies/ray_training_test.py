"""Training with actors ends with the weights of training without, whatever their number."""

import contextlib
import gc
import os
import signal

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.encoding.move_process import ProcessConfig
from placeto_tf.errors import PlacetoError, SetupError
from placeto_tf.policies.gdp.learner import PpoConfig
from placeto_tf.policies.gdp.network import GdpConfig
from placeto_tf.policies.gdp.node_inputs import node_problem
from placeto_tf.policies.gdp.training import GdpTraining, GdpTrainingConfig
from placeto_tf.policies.placeto.published.config import PublishedConfig
from placeto_tf.policies.placeto.published.network import NetworkConfig
from placeto_tf.policies.placeto.published.training import (
  PublishedTraining,
  PublishedTrainingConfig,
)
from placeto_tf.policies.placeto.training import PlacetoTraining, PlacetoTrainingConfig
from placeto_tf.training.placement_environment import EnvironmentConfig
from placeto_tf.training.problems import StartedProblem, with_starts
from placeto_tf.training.trainer import Trainer
from random_problem import random_problem

ray = pytest.importorskip("ray", reason="Ray, an optional extra, is not installed")

from placeto_tf.problem.executors import LOCAL, executor_at  # noqa: E402

# Ray 2.51 leaves files open, and does not wait for processes that it has ended.
pytestmark = [
  pytest.mark.filterwarnings("ignore::ResourceWarning"),
  pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
  pytest.mark.usefixtures("unsaved_module"),
]

PLACETO = PlacetoTrainingConfig(
    graphs=("a", "b"), clusters=("k80:3",), iterations=4, checkpoint_every=3, watch_every=3,
    width=8, steps=3, batch=32, arms=64, capacity=1000, episodes=3,
    process=ProcessConfig(rounds=1, levels=(0.5, 1.0), evaluations=10))
PUBLISHED = PublishedTrainingConfig(
    graphs=("a", "b"), max_groups=7, iterations=2, checkpoint_every=3,
    placeto=PublishedConfig(
        environment=EnvironmentConfig(num_episodes=2, start="best", order="random"),
        network=NetworkConfig(embedding="simple_aggregator", width=3)))
GDP = GdpTrainingConfig(
    graphs=("a", "b"), iterations=2, checkpoint_every=2,
    network=GdpConfig(max_devices=5, width=8, rounds=1, layers=1, heads=2, segment=16),
    training=PpoConfig(batch_size=4, epochs=1))


@pytest.fixture(scope="module", name="here", autouse=True)
def here_fixture():
  """Ray on this machine, for all tests of the module; TensorFlow traces nothing here."""
  tf.config.run_functions_eagerly(True)
  with contextlib.ExitStack() as stack:
    stack.callback(tf.config.run_functions_eagerly, False)
    stack.callback(gc.collect)  # what Ray leaves, while its warnings are ignored
    try:
      yield stack.enter_context(executor_at(LOCAL))
    except SetupError as error:
      pytest.skip(f"Ray does not start on this machine: {error}")


def placeto(root_dir, config=PLACETO):
  problems = [with_starts(random_problem(num_ops=80, num_groups=16, devices=text, seed=i))
              for i, text in enumerate(("k80:3", "p100:2+k80:2"))]
  return Trainer(PlacetoTraining, config, str(root_dir), problems=problems)


def published(root_dir):
  problems = []
  for groups in (5, 6):
    problem = random_problem(num_ops=20, num_groups=groups, devices="k80:2", seed=groups)
    start = problem.allowed.argmax(axis=1).astype(np.int32)
    problems.append(StartedProblem(f"random[{groups}]", problem, start[None]))
  return Trainer(PublishedTraining, PUBLISHED, str(root_dir), problems=problems)


def gdp(root_dir):
  return Trainer(GdpTraining, GDP, str(root_dir), problems=[
      node_problem(random_problem(num_ops=30, devices=text, seed=i))
      for i, text in enumerate(("k80:3", "k80:2"))])


def bits(run):
  return [variable.numpy().tobytes() for variable in run.learner.variables]


def tags(directory):
  return {value.tag for path in directory.glob("events*")
          for record in tf.compat.v1.io.tf_record_iterator(str(path))
          for value in tf.compat.v1.Event.FromString(record).summary.value}


@pytest.fixture(name="whole", scope="module")
def whole_fixture(tmp_path_factory):
  """Bits of a run of Placeto that collected in this process."""
  run = placeto(tmp_path_factory.mktemp("whole"))
  run.run()
  return bits(run)


def test_weights_do_not_depend_on_the_number_of_actors(here, whole, tmp_path):
  run = placeto(tmp_path)
  figures = run.run_on(here, 3, lambda *_: None)  # another number: below
  assert bits(run) == whole
  assert "held_out_ratio" not in figures
  assert "Metrics/steps_a_second" in tags(tmp_path / "train")


def test_a_run_goes_on_with_another_number_of_actors_and_without(here, whole, tmp_path):
  placeto(tmp_path).run(until=3)
  resumed = placeto(tmp_path)
  assert resumed.iteration == 3
  resumed.run_on(here, 2, lambda *_: None)
  assert bits(resumed) == whole


def test_an_actor_that_dies_is_replaced_and_nothing_changes(here, whole, tmp_path, monkeypatch):
  died = tmp_path / "died"
  run = placeto(tmp_path / "run")
  make = run.learner.collector

  # A function within a function travels to Ray's processes, which cannot import this module.
  def make_mortal(problems):
    collector = make(problems)

    def collect(weights, spec):
      if not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
      return collector(weights, spec)

    return collect

  monkeypatch.setattr(PlacetoTraining, "collector", property(lambda _: make_mortal))
  run.run_on(here, 2, lambda *_: None)
  assert died.exists() and bits(run) == whole


@pytest.mark.parametrize("make", [published, gdp])
def test_networks_learn_the_same_with_actors(here, tmp_path, make):
  alone, together = make(tmp_path / "alone"), make(tmp_path / "together")
  alone.run()
  together.run_on(here, 1, lambda *_: None)  # a second one would import TensorFlow too
  assert bits(alone) == bits(together)


def test_more_actors_than_ray_has_room_for_are_refused(here, tmp_path):
  with pytest.raises(PlacetoError, match="actors at most, not 1000; give fewer actors, or start"):
    placeto(tmp_path).run_on(here, 1000, lambda *_: None)
