import numpy as np

from placeto_tf.encoding import graph_tensor, schema
from random_problem import grouped_graph, random_problem


def features_of(pieces):
  return {name: {key: tuple(value.shape[1:]) for key, value in piece.features_spec.items()}
          for name, piece in pieces.items()}


def test_code_and_schema_agree_on_every_set_feature_shape_and_type():
  problem = random_problem()
  graph = graph_tensor.encode(grouped_graph(problem), np.zeros(problem.num_groups, dtype=int))
  found, expected = graph.spec, schema.graph_tensor_spec()
  assert features_of(found.node_sets_spec) == features_of(expected.node_sets_spec)
  assert features_of(found.edge_sets_spec) == features_of(expected.edge_sets_spec)
  assert dict(found.context_spec.features_spec) == dict(expected.context_spec.features_spec)
  for name, piece in expected.edge_sets_spec.items():
    adjacency = found.edge_sets_spec[name].adjacency_spec
    assert adjacency.source_name == piece.adjacency_spec.source_name
    assert adjacency.target_name == piece.adjacency_spec.target_name
