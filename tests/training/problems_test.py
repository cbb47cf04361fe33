import random

import numpy as np
import pytest

from placeto_tf.clusters import Cluster
from placeto_tf.errors import PlacetoError
from placeto_tf.training import problems as training_problems
from random_problem import random_problem


def test_random_clusters_have_two_to_eight_gpus_of_one_or_two_kinds():
  rng, kinds, counts = random.Random(0), set(), set()
  for _ in range(60):
    cluster = Cluster.parse(training_problems.random_cluster(rng))
    counts.add(cluster.num_devices - 1)  # without the host
    kinds.add(len(cluster.kind_devices) - 1)
  assert counts == set(range(2, 9)) and kinds == {1, 2}


def test_a_graph_gets_the_named_clusters_and_draws_of_its_own():
  first = training_problems.expand_clusters(["k80:4", "random[2]"], 0, 0)
  assert first[0] == "k80:4" and len(first) == 3
  assert first == training_problems.expand_clusters(["k80:4", "random[2]"], 0, 0)
  samples = {tuple(training_problems.expand_clusters(["random[2]"], 0, i)) for i in range(8)}
  assert len(samples) > 4


def test_a_random_cluster_without_a_count_is_refused():
  with pytest.raises(PlacetoError, match=r"'random' was not understood; expected random\[3\]"):
    training_problems.expand_clusters(["random"], 0, 0)


def test_starts_are_sorted_from_the_best_on():
  problem = random_problem(num_ops=200, num_groups=24)
  starts = training_problems.with_starts(problem).starts
  assert starts.shape == (3, 24)
  assert (np.diff(problem.evaluate(starts).objective_us) >= 0).all()
