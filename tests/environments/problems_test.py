import random

import numpy as np
import pytest

from placeto_tf.clusters import Cluster
from placeto_tf.environments import made_problems, problems
from placeto_tf.errors import PlacetoError
from placeto_tf.problem.budget import Budget
from placeto_tf.training.updates import spent_share
from random_problem import random_problem


def test_random_clusters_have_two_to_eight_gpus_of_one_or_two_kinds():
  rng, kinds, counts = random.Random(0), set(), set()
  for _ in range(60):
    cluster = Cluster.parse(problems.random_cluster(rng))
    counts.add(cluster.num_devices - 1)  # without the host
    kinds.add(len(cluster.kind_devices) - 1)
  assert counts == set(range(2, 9)) and kinds == {1, 2}


def test_a_graph_gets_the_named_clusters_and_draws_of_its_own():
  first = problems.expand_clusters(["k80:4", "random[2]"], 0, 0)
  assert first[0] == "k80:4" and len(first) == 3
  assert first == problems.expand_clusters(["k80:4", "random[2]"], 0, 0)
  assert len({tuple(problems.expand_clusters(["random[2]"], 0, i)) for i in range(8)}) > 4


def test_a_random_cluster_without_a_count_is_refused():
  with pytest.raises(PlacetoError, match=r"'random' was not understood; expected random\[3\]"):
    problems.expand_clusters(["random"], 0, 0)


def test_starts_are_sorted_from_the_best_on():
  problem = random_problem(num_ops=200, num_groups=24)
  starts = problems.with_starts(problem).starts
  assert starts.shape == (3, 24)
  assert (np.diff(problem.evaluate(starts).objective_us) >= 0).all()


@pytest.mark.parametrize("kind", ["layers", "products", "tasks", "pipelines", "packed"])
def test_an_index_decides_a_problem_which_can_be_improved(kind):
  one, again, other = (made_problems.make(f"made:{kind}[{i}]") for i in (3, 3, 4))
  np.testing.assert_array_equal(one.costs.compute_us, again.costs.compute_us)
  assert one.graph.num_ops != other.graph.num_ops or (
      one.costs.compute_us != other.costs.compute_us).any()
  assert (one.allowed.sum(axis=1) > 1).any() and one.num_devices >= 2


def test_kinds_are_what_they_say():
  tasks = [made_problems.make(f"made:tasks[{i}]") for i in range(5)]
  assert all(10 <= each.graph.num_ops <= 60 and not each.allowed_ops.all() for each in tasks)
  assert all(len(each.cluster.kind_devices) == each.num_devices for each in tasks)
  tight = made_problems.make("made:pipelines[0]")
  held = tight.costs.persistent_bytes.sum()
  assert 0 < tight.cluster.memory_bytes.min() < held < tight.cluster.memory_bytes.max()
  assert len(made_problems.make("made:products[0]").cluster.kind_devices) == 1


def test_training_makes_them_with_their_own_clusters():
  made = list(problems.make_problems(["made:tasks[0:2]"], ("k80:4", "k80:2")))
  assert [each.name for each in made] == ["made:tasks[0]", "made:tasks[1]"]
  assert all(each.starts.shape[1] == each.problem.num_groups for each in made)


@pytest.mark.parametrize("wrong", ["made:chains[0]", "made:tasks", "made:tasks[0:2]"])
def test_what_is_none_is_named(wrong):
  with pytest.raises(PlacetoError, match="expected made:KIND.index. with one of layers"):
    made_problems.make(wrong)


def test_the_share_counts_from_when_the_search_began_and_the_tighter_limit_decides():
  problem = random_problem()
  problem.evaluate(np.tile(problem.allowed.argmax(axis=1), (30, 1)).astype(np.int32))
  assert spent_share(problem, Budget(max_evaluations=50), (10, 0.0)) == pytest.approx(0.5)
  assert spent_share(problem, Budget(max_evaluations=20), (10, 0.0)) == 1.0
  assert spent_share(problem, Budget(max_seconds=1e9, max_evaluations=50), (10, 0.0)) == 0.5
  assert spent_share(problem, Budget(max_seconds=1e-6), (30, 0.0)) == 1.0


def test_at_most_is_a_limit_of_its_own():
  problem = random_problem()
  problem.evaluate(np.tile(problem.allowed.argmax(axis=1), (20, 1)).astype(np.int32))
  assert Budget(51, 9.0, 5.0).at_most(problem.search_log, 7) == Budget(27, 9.0, 5.0)
  assert Budget(22).at_most(problem.search_log, 7) == Budget(22)
  assert Budget(max_seconds=9.0).at_most(problem.search_log, 7) == Budget(27, 9.0)
