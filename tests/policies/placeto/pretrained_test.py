"""The weights that ship: they load, say where they come from, and do better than untrained ones."""

import json
import os

import numpy as np
import pytest

import subprograms
from placeto_tf.encoding.pair_features import NAMES
from placeto_tf.placing import registry, running
from placeto_tf.policies.placeto import scorer
from placeto_tf.policies.placeto.placers import search
from placeto_tf.problem.budget import Budget
from random_problem import random_problem


def test_the_sidecar_says_what_the_weights_are():
  path = os.path.join(scorer.SHIPPED, "weights.json")
  with open(path, encoding="utf-8") as file:
    sidecar = json.load(file)
  assert sidecar["features"] == list(NAMES)
  weights = scorer.pretrained()
  members = sidecar["mean_of"]
  assert len(members) == len(weights.bias_1) // weights.hidden_2.shape[1]
  for member in members:
    assert member["command"].startswith("scripts/with_env python scripts/train.py --policy=placeto")


def test_they_gain_more_than_untrained_weights_on_graphs_of_no_family():
  def ratio(weights):
    logs = []
    for seed in range(6):
      problem = random_problem(num_ops=300, num_groups=40, devices="p100:3", seed=seed)
      start = np.zeros(300, np.int32)
      before = problem.evaluate_ops(start).objective_us[0]
      search(problem, start, weights, Budget(max_evaluations=30))
      logs.append(np.log(problem.search_log.best_objective_us / before))
    return np.exp(np.mean(logs))

  assert ratio(scorer.pretrained()) < np.mean(
      [ratio(scorer.ScorerWeights.untrained(seed)) for seed in range(3)])


@pytest.mark.parametrize("devices", ["k80:2", "k80:1+v100:2", "a100:16"])
def test_the_method_keeps_its_budget_on_any_cluster_and_is_never_worse_than_its_start(devices):
  problem = random_problem(num_ops=200, num_groups=24, devices=devices)
  start_us = problem.evaluate_ops(np.zeros(200, np.int32)).objective_us[0]
  found = running.run(problem, registry.find("placeto"), Budget(max_evaluations=80))
  assert problem.search_log.evaluations <= 80
  assert problem.evaluate_ops(found).objective_us[0] < start_us


def test_inference_imports_no_tensorflow():
  code = ("import sys; from placeto_tf.policies.placeto import placers; "
          "from placeto_tf.policies.placeto import scorer; "
          "scorer.pretrained(); print('tensorflow' in sys.modules or 'tf_keras' in sys.modules)")
  assert subprograms.python("-c", code).stdout.strip() == "False"
