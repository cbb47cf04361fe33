import dataclasses
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from placeto_tf.environments.moves_environment import MovesConfig
from placeto_tf.errors import PlacetoError
from placeto_tf.policies.device_pointer.scorer import ScorerWeights
from placeto_tf.training import runs
from placeto_tf.training.pointer_problems import with_starts
from placeto_tf.training.pointer_training import (
  PointerTrainer,
  PointerTrainingConfig,
  train,
)
from random_problem import random_problem

pytestmark = pytest.mark.usefixtures("eager_module")

CONFIG = PointerTrainingConfig(
    graphs=("a", "b"), clusters=("k80:3",), max_devices=5, iterations=6, checkpoint_every=2,
    watch_every=3, environment=MovesConfig(rows=4, steps=5))


def problems():
  return [with_starts(random_problem(num_ops=80, num_groups=16, devices=text, seed=i))
          for i, text in enumerate(("k80:3", "p100:2+k80:2"))]


def trainer(root_dir, config=CONFIG, **options):
  return PointerTrainer(
      config, str(root_dir), problems=problems(), held_out=problems()[:1], **options)


@pytest.fixture(name="whole", scope="module")
def whole_fixture(tmp_path_factory, eager_module):
  """A run from its beginning to its end, its directory and what it reported."""
  root_dir, seen = tmp_path_factory.mktemp("whole"), []
  run = trainer(root_dir)
  figures = run.run(progress=lambda iteration, _: seen.append(iteration))
  return run, root_dir, figures, seen


def test_a_run_writes_weights_a_saved_model_summaries_and_says_that_it_is_done(whole):
  _, root_dir, figures, seen = whole
  assert seen == [1, 2, 3, 4, 5, 6]
  assert 0 < figures["held_out_ratio"] <= 1 and np.isfinite(figures["loss"])
  done = json.loads((root_dir / "done.json").read_text())
  assert done["iterations"] == 6 and done["skipped_updates"] == 0
  assert (root_dir / "policies" / "policy" / "saved_model.pb").exists()
  assert list((root_dir / "train").glob("events*"))
  assert json.loads((root_dir / "weights" / "weights.json").read_text())["iteration"] == 6
  ScorerWeights.load(str(root_dir / "weights"))


def test_a_run_that_was_stopped_and_resumed_ends_with_the_same_bits(whole, tmp_path, unsaved):
  stopped = trainer(tmp_path / "parts")
  stopped.run(until=5)  # the last checkpoint is of iteration 4: the fifth is done again
  resumed = trainer(tmp_path / "parts")
  assert resumed.iteration == 4
  resumed.run()
  for one, other in zip(whole[0].weights.arrays, resumed.weights.arrays):
    np.testing.assert_array_equal(one, other)
  assert not np.array_equal(whole[0].weights.hidden_1, trainer(tmp_path / "new").weights.hidden_1)


def test_a_run_that_was_killed_and_resumed_ends_with_the_same_bits(whole, tmp_path, unsaved):
  program = (
      "import pointer_training_test as t, sys; t.tf.config.run_functions_eagerly(True); "
      "t.trainer(sys.argv[1]).run("
      "progress=lambda iteration, _: print(iteration, flush=True))")
  here = os.path.dirname(os.path.abspath(__file__))
  process = subprocess.Popen(
      [sys.executable, "-c", program, str(tmp_path / "killed")], stdout=subprocess.PIPE, text=True,
      env={**os.environ, "PYTHONPATH": os.pathsep.join([here] + sys.path)})
  with process:
    for line in process.stdout:
      if line.strip() == "3":
        process.kill()  # the checkpoint of iteration 2 is there, perhaps half of the next
        break
  assert process.returncode == -signal.SIGKILL
  assert not (tmp_path / "killed" / "done.json").exists()
  resumed = trainer(tmp_path / "killed")
  assert resumed.iteration in (2, 4)
  resumed.run()
  for one, other in zip(resumed.weights.arrays, whole[0].weights.arrays):
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("change, iterations, reason", [
    ({"target": 1.0}, 3, "the target was met"),
    ({"patience": 2}, 9, r"nothing better than 1.0000 held out in 2 looks")])
def test_a_target_or_lost_patience_ends_the_run(
    tmp_path, monkeypatch, change, iterations, reason, unsaved):
  config = dataclasses.replace(CONFIG, held_out=("c",), iterations=30, **change)
  run = trainer(tmp_path, config)
  monkeypatch.setattr(run, "watch", lambda: {"held_out_ratio": 1.0})
  run.run(until=5)
  run = trainer(tmp_path, config)  # what was seen so far is part of the checkpoint
  monkeypatch.setattr(run, "watch", lambda: {"held_out_ratio": 1.0})
  run.run()
  done = json.loads((tmp_path / "done.json").read_text())
  assert done["iterations"] == iterations and done["reason"].startswith(reason)
  assert json.loads((tmp_path / "weights" / "weights.json").read_text())["iteration"] == iterations


def test_hparams_are_values_and_not_json():
  config = PointerTrainingConfig(graphs=("zoo:rnnlm",), clusters=("k80:4", "v100:2"))
  hparams = runs.hparams(config.to_json())
  assert hparams["graphs"] == "zoo:rnnlm" and hparams["clusters"] == "k80:4, v100:2"
  assert hparams["max_groups"] == 128 and hparams["learning_rate"] == 1e-3
  assert hparams["steps"] == config.environment.steps and "target" not in hparams
  assert not any(str(value)[:1] in "[{" for value in hparams.values() if value != "")


def test_summaries_hold_kl_gradient_norm_hparams_and_a_picture(tmp_path):
  trainer(tmp_path).run(until=3)
  events = event_accumulator.EventAccumulator(
      str(tmp_path / "train"), size_guidance={"tensors": 0}).Reload()
  values = {name: [float(tf.make_ndarray(each.tensor_proto)) for each in events.Tensors(name)]
            for name in ("Metrics/kl", "Metrics/gradient_norm", "Metrics/entropy")}
  assert all(len(found) == 3 and min(found) > 0 for found in values.values())
  assert len(events.Tensors("Placement/held_out")) == 1
  assert "_hparams_/session_start_info" in events.summary_metadata


def test_a_run_that_is_done_is_left_as_it_is(whole):
  _, root_dir, figures, _ = whole
  assert train(CONFIG, str(root_dir)) == figures  # "a" and "b" are no graphs: nothing is loaded


def test_another_configuration_does_not_resume(tmp_path):
  trainer(tmp_path)
  with pytest.raises(PlacetoError, match="entropy=0.01, now it is 0.5; choose another root_dir"):
    trainer(tmp_path, dataclasses.replace(CONFIG, entropy=0.5))


def test_updates_that_give_nan_are_undone_counted_and_end_the_run_after_ten(tmp_path):
  run = trainer(tmp_path, dataclasses.replace(CONFIG, iterations=30))
  run.run(until=4)
  before, learn, calls = run.weights, run._train, []

  def broken(experience):
    calls.append(None)
    info = learn(experience)
    for variable in run.agent.actor_net.variables:
      variable.assign(variable * np.nan)
    return info

  run._train = broken
  with pytest.raises(PlacetoError, match="10 updates in a row gave NaN"):
    run.run()
  assert len(calls) == 10 and run.skipped == 10
  for one, other in zip(before.arrays, run.weights.arrays):
    np.testing.assert_array_equal(one, other)


def test_a_new_run_can_begin_with_given_weights(tmp_path):
  weights = ScorerWeights.untrained(seed=7)
  weights.save(str(tmp_path / "given"))
  run = trainer(tmp_path / "run", warm_start=str(tmp_path / "given"))
  np.testing.assert_array_equal(run.weights.hidden_1, weights.hidden_1)


def test_the_checkpoint_within_the_first_minute_is_of_iteration_ten(tmp_path):
  config = dataclasses.replace(CONFIG, iterations=20, checkpoint_every=1000)
  trainer(tmp_path, config).run(until=11)
  assert tf.train.latest_checkpoint(str(tmp_path / "train")) is not None
  assert trainer(tmp_path, config).iteration == 10


@pytest.mark.parametrize("wrong", [
    {"iterations": 0}, {"discount": 1.5}, {"without": ("rang",)}, {"max_devices": 0},
    {"patience": -1}, {"target": 0.9}])
def test_wrong_settings_are_refused(wrong):
  with pytest.raises(PlacetoError, match=next(iter(wrong))):
    dataclasses.replace(CONFIG, **wrong)
