"""Scotch, where it is installed: what it cuts and balances, and that a seed decides."""

import numpy as np
import pytest

pytest.importorskip("pyscotch", reason="pyscotch, an optional extra, is not installed")

from placeto_tf.problem.budget import Budget  # noqa: E402
from placeto_tf.search import scotch  # noqa: E402
from placeto_tf.search.metis import partition_ops  # noqa: E402
from random_problem import random_problem  # noqa: E402


def test_work_is_divided_and_fewer_bytes_are_cut_than_by_chance():
  problem = random_problem(num_ops=300, devices="k80:3")
  found = partition_ops(problem, Budget(), divide=scotch.mappings)
  work = np.bincount(found, problem.costs.compute_us[:, 0], minlength=4)
  assert work[3] == 0 and work[:3].max() < 1.3 * work[:3].mean()  # nothing on the host

  def cut_bytes(placement):
    apart = placement[problem.graph.edge_producers] != placement[problem.graph.edge_consumers]
    return problem.costs.edge_bytes(problem.graph)[apart].sum()

  sampled = np.random.default_rng(0).integers(0, 3, 300)
  assert cut_bytes(found) < 0.8 * cut_bytes(sampled)
  assert problem.search_log.evaluations == 1
