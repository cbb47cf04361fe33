import dataclasses
import json

import numpy as np
import pytest

from placeto_tf.errors import PlacetoError
from placeto_tf.placements import Placement
from placeto_tf.policies.hierarchical.policy import HierarchicalConfig
from placeto_tf.policies.one_graph import HierarchicalSearch, RnnSearch
from placeto_tf.policies.one_graph_training import OneGraphConfig, OneGraphTrainer, train
from placeto_tf.policies.rnn.policy import RnnConfig
from placeto_tf.policies.sequence_placer import PlacerConfig
from random_problem import random_problem

pytestmark = pytest.mark.usefixtures("eager_module")

OPTIONS = {
    "rnn": RnnSearch(policy=RnnConfig(placer=PlacerConfig(hidden=8), type_width=4)),
    "hierarchical": HierarchicalSearch(policy=HierarchicalConfig(
        num_groups=3, grouper_hidden=8, type_width=4,
        placer=PlacerConfig(hidden=8, bidirectional=True)))}
TRAINING = dataclasses.replace(RnnSearch().training, batch_size=4)


def config(policy="rnn", **changes):
  return OneGraphConfig(
      ("a",), ("k80:2",), policy=policy,
      **{"iterations": 5, "checkpoint_every": 2, "training": TRAINING, **changes})


def trainer(root_dir, given, **options):
  return OneGraphTrainer(
      given, str(root_dir), problem=random_problem(num_ops=30, devices="k80:2", seed=3),
      options=OPTIONS[given.policy], **options)


@pytest.mark.parametrize("policy", sorted(OPTIONS))
def test_a_run_that_was_stopped_and_resumed_ends_as_one_that_was_not(policy, tmp_path):
  whole = trainer(tmp_path / "whole", config(policy))
  figures = whole.run()
  assert np.isfinite(figures["loss"]) and figures["best_ms"] > 0
  trainer(tmp_path / "cut", config(policy)).run(until=3)  # the last checkpoint is of iteration 2
  resumed = trainer(tmp_path / "cut", config(policy))
  assert resumed.iteration == 2
  resumed.run()
  for one, other in zip(whole.policy.trainable_variables, resumed.policy.trainable_variables):
    np.testing.assert_array_equal(one.numpy(), other.numpy())
  np.testing.assert_array_equal(
      whole.problem.account.best_placement, resumed.problem.account.best_placement)
  saved = [(tmp_path / run / "placement.json").read_bytes() for run in ("whole", "cut")]
  assert saved[0] == saved[1]  # how many were evaluated included


def test_a_run_leaves_its_best_placement_and_says_that_it_is_done(tmp_path):
  run = trainer(tmp_path, config())
  figures = run.run()
  placement = Placement.load(str(tmp_path / "placement.json"))
  found = placement.indices(run.problem.graph, run.problem.cluster)
  np.testing.assert_array_equal(found, run.problem.account.best_placement)
  assert json.loads((tmp_path / "done.json").read_text())["iterations"] == 5
  assert train(config(), str(tmp_path)) == figures  # "a" is no graph: nothing is loaded


def test_what_cannot_be_trained_is_refused(tmp_path):
  with pytest.raises(PlacetoError, match="'gdp' is not known; expected one of rnn, hierarchical"):
    config("gdp")
  with pytest.raises(PlacetoError, match="iterations is 0"):
    config(iterations=0)
  with pytest.raises(PlacetoError, match="made for one graph; give none"):
    trainer(tmp_path, config(), warm_start="weights")
