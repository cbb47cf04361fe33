"""Tests for placeto_tf.costs.shape_guesses."""

from tensorflow.core.framework import graph_pb2
from tensorflow.core.grappler.costs import op_performance_data_pb2

from placeto_tf.costs.shape_guesses import Guesser

_FLOAT = 1


def _tensor(dims):
  """TensorProperties of the dimensions, None for an unknown rank."""
  tensor = op_performance_data_pb2.OpInfo.TensorProperties(dtype=_FLOAT)
  if dims is None:
    tensor.shape.unknown_rank = True
  for size in dims or ():
    tensor.shape.dim.add(size=size)
  return tensor


def _guess(nodes, shapes):
  """{(op, port): dims} from [(name, op, inputs)] and {name: [dims of each output]}."""
  graph_def = graph_pb2.GraphDef()
  for name, op, inputs in nodes:
    graph_def.node.add(name=name, op=op, input=inputs)
  outputs = {name: [_tensor(dims) for dims in ports] for name, ports in shapes.items()}
  unknown = [(name, port) for name, ports in shapes.items()
             for port, dims in enumerate(ports) if dims is None or -1 in dims]
  found = Guesser(graph_def).guess(unknown, outputs)
  assert all(tensor.dtype == _FLOAT for tensor in found.values())
  return {key: [dim.size for dim in tensor.shape.dim] for key, tensor in found.items()}


def test_unique_values_are_at_most_all_of_them():
  nodes = [("x", "Op", []), ("u", "Unique", ["x"])]
  assert _guess(nodes, {"x": [[9]], "u": [[-1], [9]]}) == {("u", 0): [9]}


def test_list_element_is_what_was_pushed_in_the_loop():
  nodes = [
      ("empty", "EmptyTensorList", []), ("x", "Op", []),
      ("enter", "Enter", ["empty"]), ("merge", "Merge", ["enter", "next"]),
      ("switch", "Switch", ["merge", "cond"]), ("body", "Identity", ["switch:1"]),
      ("push", "TensorListPushBack", ["body", "x"]), ("next", "NextIteration", ["push"]),
      ("exit", "Exit", ["switch"]),
      ("pop", "TensorListPopBack", ["exit", "shape"]),
      ("pop2", "TensorListPopBack", ["pop", "shape"]),
  ]
  shapes = {"x": [[8, 32]], "pop": [[], None], "pop2": [[], [-1, 32]]}
  assert _guess(nodes, shapes) == {("pop", 1): [8, 32], ("pop2", 1): [8, 32]}


def test_stack_element_is_what_was_pushed_on_that_stack():
  nodes = [
      ("s1", "StackV2", []), ("s2", "StackV2", []), ("a", "Op", []), ("b", "Op", []),
      ("e1", "Enter", ["s1"]), ("e2", "Enter", ["s2"]),
      ("push1", "StackPushV2", ["e1", "a"]), ("push2", "StackPushV2", ["e2", "b:1"]),
      ("g1", "Enter", ["s1"]), ("g2", "Enter", ["s2"]),
      ("pop1", "StackPopV2", ["g1"]), ("pop2", "StackPopV2", ["g2"]),
  ]
  shapes = {"a": [[1]], "b": [[2], [3]], "pop1": [None], "pop2": [None]}
  assert _guess(nodes, shapes) == {("pop1", 0): [1], ("pop2", 0): [3]}


def test_what_a_branch_kept_for_its_gradient_has_the_shape_it_had():
  nodes = [
      ("x", "Op", []), ("y", "Op", []), ("none", "OptionalNone", []),
      ("kept", "OptionalFromValue", ["x", "y"]), ("merge", "Merge", ["kept", "none"]),
      ("switch", "Switch", ["merge", "p"]), ("p", "Op", []),
      ("got", "OptionalGetValue", ["switch:1"])]
  shapes = {"x": [[2, 3]], "y": [[5]], "kept": [[]], "none": [[]], "merge": [[], []],
            "switch": [[], []], "p": [[]], "got": [None, None]}
  assert _guess(nodes, shapes) == {("got", 0): [2, 3], ("got", 1): [5]}


def test_a_lookup_has_the_shape_of_its_keys_and_of_its_default_value():
  nodes = [("t", "HashTableV2", []), ("keys", "Op", []), ("default", "Const", []),
           ("found", "LookupTableFindV2", ["t", "keys", "default"])]
  shapes = {"t": [None], "keys": [[4, 7]], "default": [[]], "found": [None]}
  assert _guess(nodes, shapes) == {("found", 0): [4, 7]}
  assert _guess(nodes, dict(shapes, default=[[3]])) == {("found", 0): [4, 7, 3]}
  assert not _guess(nodes, dict(shapes, keys=[None]))

