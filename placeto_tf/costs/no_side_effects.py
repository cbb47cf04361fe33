"""Stops TensorFlow's analysis of a graph from using files and the network.

Shape inference runs ops whose inputs are constants. Some ops that TensorFlow counts as stateless
read the file that a constant names (ReadFile), or write a file (ops of the debugger). So the
analysis of an untrusted graph could read this machine's files, or wait for a pipe. In the analysed
copy, these ops get file names from an op of unknown value, and attributes with file names are
emptied. Then shapes that depend on a file's content are unknown. Stateful ops are never run.
"""

from __future__ import annotations

import re
from typing import Any, Iterable, Iterator, Mapping, Set, Tuple

from placeto_tf.graphs.functions import named_functions
from placeto_tf.graphs.op_defs import registered_op_def

_DT_STRING = 7
# Op type -> inputs of text that name files or servers.
_NAMING_INPUTS: Mapping[str, Tuple[int, ...]] = {
    "ReadFile": (0,), "MatchingFiles": (0,), "GenerateVocabRemapping": (0, 1),
    "InitializeTableFromTextFile": (1,), "InitializeTableFromTextFileV2": (1,),
    "CacheDataset": (1,), "CacheDatasetV2": (1,), "SnapshotDataset": (1,),
    "SnapshotDatasetV2": (1,), "SnapshotDatasetReader": (0,), "SnapshotChunkDataset": (0,),
    "RegisterDataset": (1,), "RegisterDatasetV2": (1,),
}
# Op type -> (attribute, its new value; None for an empty list).
_NAMING_ATTRIBUTES: Mapping[str, Tuple[str, Any]] = {
    "ImmutableConst": ("memory_region_name", b""), "EncodeProto": ("descriptor_source", b"local://"),
    "DecodeProtoV2": ("descriptor_source", b"local://"), "DebugIdentity": ("debug_urls", None),
    "DebugIdentityV2": ("debug_urls", None), "DebugIdentityV3": ("debug_urls", None),
    "DebugNanCount": ("debug_urls", None), "DebugNumericSummary": ("debug_urls", None),
}


# Stateful ops whose state is a variable, a random seed, or ends with the step.
_OWN_STATE = re.compile(
    "(Resource(SparseApply|Apply|Scatter|Gather|AccumulatorApply|CountUpTo|StridedSliceAssign)"
    "|SparseApply|Apply|Scatter|Assign|Variable|VarHandle|VarIsInit|ReadVariable|DestroyResource"
    "|IsVariableInitialized|TemporaryVariable|DestroyTemporary|CountUpTo"
    "|Random|Multinomial|TruncatedNormal|ParameterizedTruncatedNormal|Stateful(Uniform|Standard|"
    "Truncated|Random)|Rng|NonDeterministic|StatelessRandomGet|SampleDistortedBoundingBox"
    "|(LogUniform|Uniform|LearnedUnigram|FixedUnigram|All|ThreadUnsafeUnigram)CandidateSampler"
    "|TensorArray|Stack|TensorList|Assert|Placeholder|FakeParam|Cudnn|Dropout|AnonymousSeed"
    "|DeleteSeed|Merge|Switch|Enter|Exit|NextIteration|If|While|Case|PartitionedCall"
    "|StatefulPartitionedCall|CheckNumerics|LookupTable(Find|Size)|_Arg|_Retval|Timestamp|MutexV2|IdentityN?$)")


def may_act(node: Any) -> bool:
  """Returns whether an op may have effects besides results, samples and changed variables."""
  op_def = registered_op_def(node.op)
  return (node.op in _NAMING_INPUTS or node.op in _NAMING_ATTRIBUTES or op_def is None
          or op_def.is_stateful and not _OWN_STATE.match(node.op))


def acting(nodes: Iterable[Any], library: Any) -> Iterator[Any]:
  """Yields the ops that may do more than compute, sample, or change a variable of their graph.

  Args:
    nodes: NodeDefs of ops that run.
    library: the FunctionDefLibrary of their graph; functions that no op calls do not run.

  Yields:
    NodeDefs, also of the functions that the ops call, directly or through others.
  """
  functions = {function.signature.name: function.node_def for function in library.function}
  called: Set[str] = set()
  bodies = [nodes]
  while bodies:
    for node in bodies.pop():
      if node.op not in functions and may_act(node):
        yield node
      for name in named_functions(node):
        if name in functions and name not in called:
          called.add(name)
          bodies.append(functions[name])


def removed(graph_def: Any) -> Any:
  """Takes names of files and servers from a GraphDef and its functions, in place."""
  # In functions inputs are written "op:output:index".
  bodies = [(function.node_def, ":output:0") for function in graph_def.library.function]
  for nodes, output in ((graph_def.node, ""), *bodies):
    names = {node.name for node in nodes}  # a source may be there from an earlier pass
    for node in list(nodes):
      for position in _naming(node):
        # A source of text of unknown value for each input, because the shapes that ops ask for
        # differ.
        name = f"{node.name}/name_{position}"
        node.input[position] = name + output
        if name not in names:
          source = nodes.add(name=name, op="FakeParam")
          source.attr["dtype"].type = _DT_STRING
          source.attr["shape"].shape.unknown_rank = True
  return graph_def


def _naming(node: Any) -> Iterator[int]:
  """Yields the inputs of a node that name files; empties its attributes that do."""
  if node.op in _NAMING_ATTRIBUTES:
    attribute, value = _NAMING_ATTRIBUTES[node.op]
    if value is None:
      # An empty list, not a missing attribute, which would be an error for the op.
      node.attr[attribute].list.Clear()
      node.attr[attribute].list.SetInParent()
    else:
      node.attr[attribute].s = value
  for position in _NAMING_INPUTS.get(node.op, ()):
    if position < len(node.input) and not node.input[position].startswith("^"):
      yield position
