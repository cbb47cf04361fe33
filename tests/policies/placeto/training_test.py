import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from training_runs import PLACETO, compiled_scores, placeto

import graph_files
import placeto_tf
import subprograms
from placeto_tf.encoding import graph_tensor
from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.encoding.placed_groups import PlacedGroups
from placeto_tf.environments.move_environment import MoveEnvironment
from placeto_tf.policies.placeto.scorer import ScorerWeights
from random_problem import random_problem

import tensorflow_gnn as tfgnn  # isort: skip


@pytest.fixture(name="whole", scope="module")
def whole_fixture(tmp_path_factory):
  """A run from its beginning to its end, its directory, its first weights, and its figures."""
  root_dir = tmp_path_factory.mktemp("whole")
  run = placeto(root_dir)
  return run, root_dir, run.learner.weights, run.run()


def test_a_run_learns_writes_weights_and_says_that_it_is_done(whole):
  run, root_dir, first, figures = whole
  assert np.isfinite(figures["loss"]) and 0 < figures["held_out_ratio"] <= 1
  assert json.loads((root_dir / "done.json").read_text())["iterations"] == 5
  weights = ScorerWeights.load(str(root_dir))
  assert weights.output.shape == (8,) and not np.array_equal(weights.output, first.output)
  np.testing.assert_array_equal(weights.hidden_1, run.learner.weights.hidden_1)


def test_the_saved_model_scores_option_edges_in_a_process_without_this_package(whole, tmp_path):
  run, root_dir, *_ = whole
  problem = random_problem(num_ops=30, num_groups=6, devices="k80:5", seed=9)  # of another size
  placed = PlacedGroups(problem, problem.allowed_ops.argmax(axis=1).astype(np.int32), 6)
  grouped = GroupedGraph.of(placed.level)
  pairs = placed.state.features(np.arange(grouped.num_groups, dtype=np.int32))
  graph_files.write(tfgnn.write_example(
      graph_tensor.encode(grouped, placed.groups, pairs=pairs)), tmp_path / "example")
  found = json.loads(subprograms.python("-c", f"""
import json, sys
import tensorflow as tf
loaded = tf.saved_model.load({str(root_dir / "policies" / "policy")!r})
found = loaded.place(open("example", "rb").read())
assert not any(name.startswith(("placeto_tf", "tensorflow_gnn")) for name in sys.modules)
print(json.dumps({{name: value.numpy().tolist() for name, value in found.items()}}))
""", cwd=tmp_path, PYTHONPATH="").stdout)
  assert list(zip(found["group"], found["device"])) == list(zip(*np.nonzero(grouped.allowed)))
  np.testing.assert_allclose(
      found["score"], run.learner.weights.scores(pairs[grouped.allowed]), atol=1e-5)


def test_the_policy_saved_by_tf_agents_acts_like_the_compiled_scores(whole):
  run, root_dir, *_ = whole
  loaded = placeto_tf.load_policy(str(root_dir / "policies" / "greedy_policy"))
  environment = MoveEnvironment(
      run.learner.problems, run.learner.config.schedule, arms=run.learner.config.arms)
  environment.begin(1, 0, np.random.default_rng(3))
  time_step = environment.reset()
  for _ in range(10):
    count = int(time_step.observation["num_actions"])
    action = int(loaded.action(time_step).action)
    scores = compiled_scores(run.learner.weights, time_step.observation)[:count]
    assert action < count and scores[action] >= scores.max() - 1e-5
    time_step = environment.step(np.int32(action))


def test_regression_finds_what_gains_are_made_of(tmp_path):
  learner = placeto(
      tmp_path, dataclasses.replace(PLACETO, steps=25, batch=128, learning_rate=2e-2)).learner
  played = learner.collector(learner.portable(None))(learner.weights, learner.specs(1)[0])
  rng = np.random.default_rng(0)
  pairs = rng.normal(size=(2000, 32)).astype(np.float32)
  steps = tf.nest.map_structure(lambda value: np.resize(value, (2000,) + value.shape[1:]), played)
  steps.policy_info.chosen_arm_features["pair"] = pairs
  steps = steps._replace(reward=np.maximum(pairs[:, 3], 0))
  for iteration in (1, 2):
    loss = learner.learn([steps], iteration)["loss"]
  assert loss < 0.5 * steps.reward.var()
