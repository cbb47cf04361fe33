"""Finds the ops of a step that may do more than compute, sample, or change variables of the step.

The registry of op types (`placeto_tf.ops`) knows ops that read files or write elsewhere although
TensorFlow counts them as stateless, and the roles of most stateful ops.
"""

from __future__ import annotations

import re
from typing import Any, Iterable, Iterator, Set

from placeto_tf.graphs.functions import named_functions
from placeto_tf.graphs.op_defs import registered_op_def
from placeto_tf.ops import op_rule, rule_of

# Roles of stateful ops whose state is a variable, a random seed, or ends with the step.
_OWN_ROLES = (op_rule.RANDOM, op_rule.SEEDED_RANDOM, op_rule.KEYED_RANDOM, op_rule.VARIABLE_RANDOM,
              op_rule.CONTAINER, op_rule.VARIABLE, op_rule.OF_VARIABLE, op_rule.UPDATE)
# Further ops of this kind, by the beginning of their types.
_OWN_STATE = re.compile(
    "((Resource)?(Sparse)?(Apply|Scatter|Accumulator|CountUpTo|Gather)|DestroyResource"
    "|AutoReloadVariable|(Destroy)?TemporaryVariable|Stateful|Rng|NonDeterministic"
    "|SampleDistortedBoundingBox|AllCandidateSampler|ThreadUnsafeUnigramCandidateSampler"
    "|TensorArray|Stack|TensorList|Placeholder|FakeParam|Cudnn|Dropout|AnonymousSeed|DeleteSeed"
    "|If|While|Case|CheckNumerics|LookupTable(Find|Size)|(Mutable(Dense)?)?HashTable|_Arg|_Retval"
    "|Timestamp|MutexV2|(FIFO|PaddingFIFO|Priority|RandomShuffle)Queue)")


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
      op_def, role = registered_op_def(node.op), rule_of(node.op).role
      if node.op not in functions and (op_def is None or role == op_rule.OUTSIDE or (
          op_def.is_stateful and role not in _OWN_ROLES and not _OWN_STATE.match(node.op))):
        yield node
      for name in named_functions(node):
        if name in functions and name not in called:
          called.add(name)
          bodies.append(functions[name])
