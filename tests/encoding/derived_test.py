import dataclasses

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse import csgraph

from placeto_tf.encoding import derived
from placeto_tf.encoding.graph_tensor import encode
from random_problem import grouped_graph, random_problem


def relatives(grouped):
  graph = encode(grouped, np.zeros(grouped.num_groups, np.int32))
  return derived.derive(graph)[derived.RELATIVES].numpy()


@pytest.mark.parametrize("num_groups", [1, 12, 60])
def test_a_path_of_any_length_makes_ancestors_and_descendants(num_groups):
  grouped = grouped_graph(random_problem(num_groups=num_groups))
  edges = sparse.csr_matrix(
      (np.ones(grouped.flow.sum()), (grouped.sources[grouped.flow], grouped.targets[grouped.flow])),
      shape=(num_groups, num_groups))
  lengths = csgraph.shortest_path(edges, unweighted=True)
  ancestors, descendants, _ = relatives(grouped)
  np.testing.assert_array_equal(descendants, np.isfinite(lengths) & (lengths > 0))
  np.testing.assert_array_equal(ancestors, descendants.T)


def test_every_two_groups_are_ancestor_descendant_or_parallel():
  grouped = grouped_graph(random_problem())
  assert (relatives(grouped).sum(axis=0) == 1 - np.eye(grouped.num_groups)).all()
  alone = dataclasses.replace(
      grouped, sources=grouped.sources[:0], targets=grouped.targets[:0],
      edge_bytes=grouped.edge_bytes[:0])
  assert (relatives(alone)[2] == 1 - np.eye(grouped.num_groups)).all()
