import dataclasses
import functools
import json

import numpy as np
import pytest

from placeto_tf.errors import PlacetoError
from placeto_tf.placements import Placement
from placeto_tf.placing import registry, running
from placeto_tf.policies.hierarchical import policy as hierarchical
from placeto_tf.policies.hierarchical.policy import HierarchicalConfig
from placeto_tf.policies.one_graph import OneGraphConfig, OneGraphLearner
from placeto_tf.policies.rnn import policy as rnn
from placeto_tf.policies.rnn.policy import RnnConfig
from placeto_tf.policies.sequence_placer import PlacerConfig
from placeto_tf.problem.budget import Budget
from placeto_tf.training.trainer import Trainer
from random_problem import means_of_samples, random_problem

RNN = RnnConfig(
    placer=PlacerConfig(hidden=16), type_width=4, training=dataclasses.replace(
        RnnConfig().training, learning_rate=2e-2, final_learning_rate=2e-2))
HIERARCHICAL = HierarchicalConfig(
    num_groups=4, grouper_hidden=32, type_width=4, grouper_scale=3.0,
    placer=PlacerConfig(hidden=16, bidirectional=True), training=dataclasses.replace(
        HierarchicalConfig().training, learning_rate=1e-2, final_learning_rate=1e-2))
POLICIES = {"rnn": rnn.POLICY, "hierarchical": hierarchical.POLICY}
CONFIGS = {"rnn": RNN, "hierarchical": HIERARCHICAL}


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_two_chains_end_up_on_two_devices(name, two_chains):
  problem = two_chains
  means = means_of_samples(problem)
  placement = POLICIES[name].place(problem, Budget(max_evaluations=960), config=CONFIGS[name])
  half_us = problem.simulator.simulate(np.repeat(np.int32([0, 1]), 10)).step_time_us
  assert problem.simulator.simulate(placement).step_time_us == half_us
  assert np.mean(means[-5:]) < 0.85 * means[0]  # not by luck: what it draws is better


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_method_starts_from_nothing_stays_within_its_budget_and_repeats(name, eagerly):
  found = []
  for _ in range(2):
    problem = random_problem()
    placement = POLICIES[name].place(
        problem, Budget(max_evaluations=40), 3, config=CONFIGS[name])
    np.testing.assert_array_equal(placement, problem.search_log.best_placement)
    assert problem.search_log.evaluations == 32  # two batches of 16
    found.append([row[::2] for row in problem.search_log.history])
  assert found[0] == found[1]


def test_a_method_answers_even_if_loading_took_all_its_time(eagerly):
  problem = random_problem()
  assert running.run(problem, registry.find("rnn"), Budget(max_seconds=1e-3)).shape == (60,)


OPTIONS = {
    "rnn": RnnConfig(placer=PlacerConfig(hidden=8), type_width=4),
    "hierarchical": HierarchicalConfig(
        num_groups=3, grouper_hidden=8, type_width=4,
        placer=PlacerConfig(hidden=8, bidirectional=True))}
TRAINING = dataclasses.replace(RnnConfig().training, batch_size=4)


def config(policy="rnn", **changes):
  return OneGraphConfig(
      ("a",), ("k80:2",), policy=policy,
      **{"iterations": 5, "checkpoint_every": 2, "training": TRAINING, **changes})


def trainer(root_dir, given, **options):
  small = dataclasses.replace(POLICIES[given.policy], options=OPTIONS[given.policy])
  return Trainer(
      functools.partial(OneGraphLearner, small), given, str(root_dir),
      problems=[random_problem(num_ops=30, devices="k80:2", seed=3)], **options)


@pytest.mark.parametrize("policy", sorted(OPTIONS))
def test_a_run_that_was_stopped_and_resumed_ends_as_one_that_was_not(policy, tmp_path, eagerly):
  whole = trainer(tmp_path / "whole", config(policy))
  figures = whole.run()
  assert np.isfinite(figures["loss"]) and figures["best_ms"] > 0
  trainer(tmp_path / "cut", config(policy)).run(until=3)  # the last checkpoint is of iteration 2
  resumed = trainer(tmp_path / "cut", config(policy))
  assert resumed.iteration == 2
  resumed.run()
  for one, other in zip(whole.learner.variables, resumed.learner.variables):
    np.testing.assert_array_equal(one.numpy(), other.numpy())
  np.testing.assert_array_equal(
      whole.learner.problem.search_log.best_placement,
      resumed.learner.problem.search_log.best_placement)
  saved = [(tmp_path / run / "placement.json").read_bytes() for run in ("whole", "cut")]
  assert saved[0] == saved[1]  # how many were evaluated included


def test_a_run_leaves_its_best_placement_and_says_that_it_is_done(tmp_path, eagerly):
  run = trainer(tmp_path, config())
  figures = run.run()
  placement = Placement.load(str(tmp_path / "placement.json"))
  problem = run.learner.problem
  found = placement.indices(problem.graph, problem.cluster)
  np.testing.assert_array_equal(found, problem.search_log.best_placement)
  assert json.loads((tmp_path / "done.json").read_text())["iterations"] == 5
  # "a" is no graph: nothing is loaded.
  assert rnn.POLICY.trainable().train(config(), str(tmp_path)) == figures


def test_what_cannot_be_trained_is_refused(tmp_path):
  with pytest.raises(PlacetoError, match="made for one graph; give none"):
    trainer(tmp_path, config(), warm_start="weights")
