"""Where eager TensorFlow ran the ops of a function, for programs that place functions."""

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context


def traced(function, *args):
  """What a first call returns, and op -> devices in the graphs that were run."""
  context.context().enable_run_metadata()
  results = function(*args)
  metadata = context.context().export_run_metadata()
  context.context().disable_run_metadata()
  devices = {}
  for graphs in metadata.function_graphs:
    for graph in graphs.partition_graphs:
      for node in graph.node:
        devices.setdefault(node.name, set()).add(node.device.rpartition("/device:")[2])
  return results, devices


def compared(graph, placement, devices):
  """Ops that ran elsewhere and ops that were not seen.

  What is fed or made before is left out, the op that keeps a call's name for sessions, and Consts,
  of which newer TensorFlow runs copies on the devices that read them.
  """
  # An op's name may stand behind that of the call it was run by.
  by_tail = {}
  for name, where in devices.items():
    while name:
      by_tail.setdefault(name, set()).update(where)
      name = name.partition("/")[2]
  elsewhere, unseen = [], []
  for op, op_type in zip(graph.op_names, graph.op_types):
    if op_type in ("Placeholder", "VarHandleOp", "IdentityN", "Const"):
      continue
    found = by_tail.get(op)
    if not found:
      unseen.append(op)
    elif placement[op][1:] not in found:
      elsewhere.append(op)
  return {"ops": graph.num_ops, "elsewhere": elsewhere, "unseen": unseen,
          "share": sum(device == "/CPU:1" for device in placement.values()) / len(placement)}


def same(left, right):
  """Whether two nests of arrays are equal bit for bit."""
  left, right = tf.nest.flatten(left), tf.nest.flatten(right)
  return len(left) == len(right) and all(
      np.array(a).tobytes() == np.array(b).tobytes() for a, b in zip(left, right))
