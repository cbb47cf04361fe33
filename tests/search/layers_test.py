import numpy as np

from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph
from placeto_tf.search.layers import layer_positions


def _graph(ops, edges, together=()):
  """A graph of {name: type} and edges by name; `together` are sets of colocated names."""
  names = list(ops)
  index = {name: i for i, name in enumerate(names)}
  colocation = np.arange(len(names), dtype=np.int32)
  for members in together:
    indices = [index[name] for name in members]
    colocation[indices] = min(indices)
  rows = [(index[u], port, index[v]) for u, port, v in edges]
  return ComputationGraph.from_edges(
      names, list(ops.values()), [1] * len(names), rows, colocation=colocation)


def _positions(graph):
  return dict(zip(graph.op_names, layer_positions(graph).tolist()))


def test_time_steps_of_a_recurrent_layer_share_its_variables_position():
  # Two layers, two time steps: cell l at time t reads variable l, its own state and the layer
  # below. By depth, the first layer's second step would stand with the second layer's first.
  ops = {"x0": "Placeholder", "x1": "Placeholder", "v0": "VariableV2", "v1": "VariableV2"}
  ops.update({f"cell{layer}{t}": "MatMul" for layer in range(2) for t in range(2)})
  edges = [("x0", 0, "cell00"), ("x1", 0, "cell01"), ("cell00", 0, "cell01"),
           ("cell00", 0, "cell10"), ("cell01", 0, "cell11"), ("cell10", 0, "cell11")]
  edges += [(f"v{layer}", 0, f"cell{layer}{t}") for layer in range(2) for t in range(2)]
  found = _positions(_graph(ops, edges))
  assert found["cell00"] == found["cell01"] == found["v0"] == found["x0"] == found["x1"]
  assert found["cell10"] == found["cell11"] == found["v1"] > found["cell00"]


def _training_graph():
  ops = {
      "x": "Placeholder", "a/v": "VarHandleOp", "a/read": "ReadVariableOp", "a/MatMul": "MatMul",
      "a/Relu": "Relu", "b/v": "VarHandleOp", "b/read": "ReadVariableOp", "b/MatMul": "MatMul",
      "loss": "Sum",
      "train/gradients/loss_grad/Tile": "Tile",
      "train/gradients/b/MatMul_grad/MatMul": "MatMul",
      "train/gradients/a/Relu_grad/ReluGrad": "ReluGrad",
      "train/gradients/AddN": "AddN",
      "train/scaled": "Mul",
      "train/update_a": "ResourceApplyMomentum",
  }
  edges = [
      ("x", 0, "a/MatMul"), ("a/v", 0, "a/read"), ("a/read", 0, "a/MatMul"),
      ("a/MatMul", 0, "a/Relu"), ("b/v", 0, "b/read"), ("b/read", 0, "b/MatMul"),
      ("a/Relu", 0, "b/MatMul"), ("b/MatMul", 0, "loss"),
      ("loss", CONTROL, "train/gradients/loss_grad/Tile"),
      ("train/gradients/loss_grad/Tile", 0, "train/gradients/b/MatMul_grad/MatMul"),
      ("b/read", 0, "train/gradients/b/MatMul_grad/MatMul"),
      ("train/gradients/b/MatMul_grad/MatMul", 0, "train/gradients/a/Relu_grad/ReluGrad"),
      ("a/Relu", 0, "train/gradients/a/Relu_grad/ReluGrad"),
      ("train/gradients/a/Relu_grad/ReluGrad", 0, "train/gradients/AddN"),
      ("train/gradients/AddN", 0, "train/scaled"), ("train/scaled", 0, "train/update_a"),
      ("a/v", 0, "train/update_a"),
  ]
  return _graph(ops, edges, [
      ("a/v", "a/read", "train/update_a"), ("b/v", "b/read")])


def test_gradients_stand_with_their_forward_op():
  found = _positions(_training_graph())
  assert found["train/gradients/b/MatMul_grad/MatMul"] == found["b/MatMul"] > found["a/MatMul"]
  assert found["train/gradients/a/Relu_grad/ReluGrad"] == found["a/Relu"] == found["a/MatMul"]


def test_optimizer_ops_stand_with_their_variable():
  found = _positions(_training_graph())
  assert found["train/update_a"] == found["a/v"] == found["a/MatMul"]
  assert found["train/scaled"] == found["a/MatMul"]


def _tape_graph(gradient_name):
  ops = {"v": "VariableV2", "call/dense/MatMul": "MatMul", "w": "VariableV2",
         "call/top/MatMul": "MatMul", "call/gradient_tape/top/MatMul": "MatMul",
         gradient_name: "MatMul"}
  edges = [("v", 0, "call/dense/MatMul"), ("call/dense/MatMul", 0, "call/top/MatMul"),
           ("w", 0, "call/top/MatMul"), ("call/top/MatMul", 0, "call/gradient_tape/top/MatMul"),
           ("call/gradient_tape/top/MatMul", 0, gradient_name),
           ("call/dense/MatMul", 0, gradient_name)]
  return _graph(ops, edges)


def test_a_gradient_tape_op_stands_with_the_forward_op_it_names_behind_its_call_site():
  name = "call/gradient_tape/dense/MatMul/Mul"
  found = _positions(_tape_graph(name))
  assert found[name] == found["call/dense/MatMul"] < found["call/top/MatMul"]


def test_a_gradient_op_that_names_nothing_stands_with_the_forward_op_it_reads():
  found = _positions(_tape_graph("call/gradient_tape/Mul"))
  assert found["call/gradient_tape/Mul"] == found["call/dense/MatMul"]
