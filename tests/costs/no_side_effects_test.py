"""Looking at a graph reads and writes no file that the graph names."""

import numpy as np
import pytest
from google.protobuf import text_format
from tensorflow.core.framework import graph_pb2

from placeto_tf.clusters import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.costs.shape_analysis import analyse
from placeto_tf.graphs import load_graph

# A shape that a file's content decides.
NODES = """
node { name: "path" op: "Const" attr { key: "dtype" value { type: DT_STRING } }
  attr { key: "value" value { tensor { dtype: DT_STRING tensor_shape {} string_val: "PATH" } } } }
node { name: "read" op: "ReadFile" input: "path" }
node { name: "decoded" op: "DecodeRaw" input: "read"
  attr { key: "out_type" value { type: DT_INT32 } }
  attr { key: "little_endian" value { b: true } } }
node { name: "value" op: "Const" attr { key: "dtype" value { type: DT_FLOAT } }
  attr { key: "value" value { tensor { dtype: DT_FLOAT tensor_shape {} float_val: 1 } } } }
node { name: "fetch" op: "Fill" input: "decoded" input: "value"
  attr { key: "T" value { type: DT_FLOAT } } attr { key: "index_type" value { type: DT_INT32 } } }
"""
MAPPED = """
node { name: "fetch" op: "ImmutableConst" attr { key: "dtype" value { type: DT_INT32 } }
  attr { key: "shape" value { shape { dim { size: 2 } } } }
  attr { key: "memory_region_name" value { s: "PATH" } } }
node { name: "value" op: "Const" attr { key: "dtype" value { type: DT_FLOAT } }
  attr { key: "value" value { tensor { dtype: DT_FLOAT tensor_shape {} float_val: 1 } } } }
node { name: "filled" op: "Fill" input: "fetch" input: "value"
  attr { key: "T" value { type: DT_FLOAT } } attr { key: "index_type" value { type: DT_INT32 } } }
"""
# The debugger's ops write what passes through them.
DEBUGGED = """
node { name: "dims" op: "Const" attr { key: "dtype" value { type: DT_INT32 } }
  attr { key: "value" value { tensor { dtype: DT_INT32
    tensor_shape { dim { size: 2 } } int_val: 3 } } } }
node { name: "debugged" op: "DebugIdentity" input: "dims"
  attr { key: "T" value { type: DT_INT32 } }
  attr { key: "device_name" value { s: "/job:localhost/replica:0/task:0/device:CPU:0" } }
  attr { key: "tensor_name" value { s: "dims:0" } }
  attr { key: "debug_urls" value { list { s: "file://PATH" } } } }
node { name: "value" op: "Const" attr { key: "dtype" value { type: DT_FLOAT } }
  attr { key: "value" value { tensor { dtype: DT_FLOAT tensor_shape {} float_val: 1 } } } }
node { name: "fetch" op: "Fill" input: "debugged" input: "value"
  attr { key: "T" value { type: DT_FLOAT } } attr { key: "index_type" value { type: DT_INT32 } } }
"""


def graph_def(text, path):
  return text_format.Parse(text.replace("PATH", str(path)), graph_pb2.GraphDef())


@pytest.fixture(name="secret")
def secret_fixture(tmp_path):
  path = tmp_path / "secret"
  path.write_bytes(np.array([3, 5], "<i4").tobytes())
  return path


@pytest.mark.parametrize("text, name", [(NODES, "fetch"), (MAPPED, "filled")])
def test_no_file_is_read_for_a_shape(secret, text, name):
  found = analyse(graph_def(text, secret)).outputs[name][0]
  assert [dim.size for dim in found.shape.dim] != [3, 5]
  assert not found.shape.dim or all(dim.size < 0 for dim in found.shape.dim)


def test_no_file_is_written(tmp_path):
  out = tmp_path / "dumped"
  found = analyse(graph_def(DEBUGGED, out)).outputs["fetch"][0]
  assert not out.exists()
  assert len(found.shape.dim) in (0, 2)


def test_functions_are_looked_after_as_well(secret):
  whole = graph_pb2.GraphDef()
  function = whole.library.function.add()
  function.signature.name = "body"
  function.signature.output_arg.add(name="out", type=1)
  nodes = graph_def(NODES, secret).node
  nodes[1].input[0] = "path:output:0"
  nodes[2].input[0] = "read:contents:0"
  nodes[4].input[:] = ["decoded:output:0", "value:output:0"]
  function.node_def.extend(nodes)
  function.ret["out"] = "fetch:output:0"
  call = whole.node.add(name="fetch", op="PartitionedCall")
  call.attr["f"].func.name = "body"
  call.attr["Tin"].list.SetInParent()
  call.attr["Tout"].list.type.append(1)
  found = analyse(whole).outputs["fetch"][0]
  assert [dim.size for dim in found.shape.dim] != [3, 5]


def test_costs_of_a_graph_that_reads_a_file_are_estimated(secret, tmp_path):
  path = tmp_path / "graph.pb"
  path.write_bytes(graph_def(NODES, secret).SerializeToString())
  graph = load_graph(str(path), fetches=["fetch"])
  costs = estimate_costs(graph, Cluster.parse("k80:1"), cache=False)
  assert np.isfinite(costs.compute_us).all()
