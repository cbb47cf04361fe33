"""Training with actors ends with the weights of training without, whatever their number."""

import dataclasses
import os
import signal

import pytest
from ray_here import MARKS, on_ray_fixture, ray  # noqa: F401
from training_runs import AGGREGATOR, GDP, PLACETO, bits, gdp, placeto, published

from placeto_tf.problem.executors import InProcess

pytestmark = [*MARKS, pytest.mark.usefixtures("on_ray", "eager_module", "unsaved_module")]


def test_a_run_goes_on_with_actors_of_which_one_dies_and_nothing_changes(
    on_ray, tmp_path):
  config = dataclasses.replace(PLACETO, iterations=4, checkpoint_every=3, episodes=3)
  whole, died = placeto(tmp_path / "whole", config), tmp_path / "died"
  whole.run()
  placeto(tmp_path / "run", config).run(until=3)
  run = placeto(tmp_path / "run", config)
  assert run.iteration == 3
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

  run.learner.collector = make_mortal
  run.run(executor=on_ray, actors=2)
  assert died.exists() and bits(run) == bits(whole)


class _Pickling(InProcess):
  """Runs calls in this process, with what Ray would send to another one."""

  def share(self, value):
    return super().share(ray.cloudpickle.loads(ray.cloudpickle.dumps(value)))


@pytest.mark.parametrize("make, config, elsewhere", [
    (published, AGGREGATOR, True), (gdp, GDP, False)])
def test_networks_learn_the_same_with_actors(on_ray, tmp_path, make, config, elsewhere):
  config = dataclasses.replace(config, iterations=2)
  alone, together = make(tmp_path / "alone", config), make(tmp_path / "together", config)
  alone.run()
  # A second actor on Ray would import TensorFlow, too.
  together.run(executor=on_ray if elsewhere else _Pickling(), actors=1)
  assert bits(alone) == bits(together)
