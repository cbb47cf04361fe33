import numpy as np

import graph_tensor_drawing as drawing
from placeto_tf.encoding import graph_tensor
from random_problem import grouped_graph, random_problem


def test_a_graph_tensor_is_drawn_into_a_small_png(tmp_path):
  grouped = grouped_graph(random_problem())
  path = tmp_path / "graph.png"
  drawing.draw(graph_tensor.encode(grouped, np.zeros(grouped.num_groups, dtype=int)), str(path))
  content = path.read_bytes()
  assert content.startswith(b"\x89PNG") and 5_000 < len(content) < 150_000


def test_groups_stand_to_the_right_of_what_they_read():
  sources, targets = np.array([0, 0, 1, 3]), np.array([1, 2, 2, 2])
  x, y = drawing._layout(5, sources, targets)
  assert (x[sources] < x[targets]).all()
  assert len(set(zip(x.tolist(), y.tolist()))) == 5
