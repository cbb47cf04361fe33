"""Lowers `While`, `If` and `Case` to the loops and switches of v1, whose ops can be placed.

TensorFlow lowers them in the same way when it runs them. `While` named "site" becomes, for each
variable that the body changes,

  enter -> merge -> switch -> identity -> [site/body] -> next -> (merge)
                     switch -> exit

with `site/loop_cond` fed by the ops of `site/cond`. A variable that the body returns unchanged
(a resource, a bound) has an enter op only. `If` becomes a switch before each argument, the ops of
`site/then` and `site/else`, and a merge after each result. `Case` becomes a chain of such switches,
one for each branch except the last: a value that is not for one branch passes to the next switch.

The cond, body and branches become calls, which the inliner replaces next.
"""

from __future__ import annotations

import functools
from typing import Any, List, Optional, Sequence, Tuple

from placeto_tf.graphs.op_defs import REF
from placeto_tf.graphs.tensor_names import control_inputs, control_of, data_inputs
from placeto_tf.on_use import FunctionDef, NameAttrList, NodeDef, tf

_WHILE = ("While", "StatelessWhile")
_IF = ("If", "StatelessIf")
CASE = ("Case", "StatelessCase")
LOWERED = _WHILE + _IF + CASE
_BOOL = 10  # DT_BOOL
_INT32 = 3  # DT_INT32


def functions_of(node: NodeDef) -> Tuple[str, ...]:
  """Returns the names of the functions that a `While`, `If` or `Case` calls."""
  if node.op in CASE:
    return tuple(func.name for func in node.attr["branches"].list.func) if (
        "branches" in node.attr) else ()
  keys = ("cond", "body") if node.op in _WHILE else ("then_branch", "else_branch")
  return tuple(node.attr[key].func.name if key in node.attr else "" for key in keys)


def lower(
    inliner: Any, node: NodeDef, site: Any, inner: Any) -> Optional[List[Tuple[NodeDef, Any]]]:
  """Makes the nodes that replace a `While`, `If` or `Case`.

  Args:
    inliner: makes nodes and records replacements.
    node: the node, with checked attributes.
    site: the site of the node.
    inner: the site of the ops inside.

  Returns:
    (node, its site) of each new node, or None if the node cannot be lowered.
  """
  kind = _while if node.op in _WHILE else _if if node.op in _IF else _case
  return kind(inliner, node, site, inner)


def _call(inliner, name, func, inputs, in_types, out_types, device):
  return inliner.node(
      name, "StatefulPartitionedCall", inputs, device, f=("func", func),
      Tin=("types", in_types), Tout=("types", out_types))


def _add(inliner, nodes, node, what, op, inputs, dtype, **attrs) -> str:
  """Adds an op of one DataType, named after a call, to nodes; returns its name."""
  nodes.append(inliner.node(
      f"{node.name}/{what}", op, inputs, node.device, T=("type", dtype), **attrs))
  return nodes[-1].name


def _while(inliner, node, site, inner):
  data, controls = data_inputs(node), control_inputs(node)
  name, device = node.name, node.device
  # Reference types count as the types of their values.
  types = [dtype % REF for dtype in inliner.op_defs.signature(node).outputs]
  cond, body = node.attr["cond"].func, node.attr["body"].func
  # Variables that the body changes need a back edge; the others only enter.
  body_function = inliner.op_defs.functions[body.name]
  constant = _handed_back(body_function, len(types))
  varying = [i for i in range(len(types)) if not constant[i]]
  if not varying or len(data) != len(types):
    return None
  # The cond and body wait for the first variable with a back edge.
  first = varying[0]
  trips = node.attr["parallel_iterations"].i if "parallel_iterations" in node.attr else 10
  # Ops inside the loop's frame, and ops after the loop.
  inside: List[NodeDef] = []
  outside: List[NodeDef] = []
  add = functools.partial(_add, inliner, inside, node)
  for i, dtype in enumerate(types):
    add(f"enter_{i}", "Enter", [data[i], *controls], dtype, frame_name=("s", name.encode()),
        is_constant=("b", constant[i]), parallel_iterations=("i", trips))
  # Inputs of a Merge: the entering value, then the back edge.
  for i in varying:
    add(f"merge_{i}", "Merge", [f"{name}/enter_{i}", f"{name}/next_{i}"], types[i], N=("i", 2))
  # The cond reads the values of this iteration.
  cond_inputs = [f"{name}/{'enter' if constant[i] else 'merge'}_{i}" for i in range(len(types))]
  cond_function = inliner.op_defs.functions[cond.name]
  cond_type = cond_function.signature.output_arg[0].type if (
      cond_function.signature.output_arg) else _BOOL
  inside.append(_call(
      inliner, f"{name}/cond", cond, [*cond_inputs, f"^{name}/merge_{first}"], types, [cond_type],
      device))
  decides = f"{name}/cond"
  if cond_type != _BOOL:
    decides = add("to_bool", "ToBool", [decides], cond_type)
  inside.append(inliner.node(f"{name}/loop_cond", "LoopCond", [decides], device))
  # Port 1 of a Switch continues the loop, port 0 leaves it.
  for i in varying:
    add(f"switch_{i}", "Switch", [f"{name}/merge_{i}", f"{name}/loop_cond"], types[i])
    add(f"identity_{i}", "Identity", [f"{name}/switch_{i}:1"], types[i])
  # The body reads port 1 of the switches.
  body_inputs = [f"{name}/{'enter' if constant[i] else 'identity'}_{i}" for i in range(len(types))]
  inside.append(_call(
      inliner, f"{name}/body", body, [*body_inputs, f"^{name}/identity_{first}"], types, types,
      device))
  effects = inliner.is_effectful(body_function)
  for i in varying:
    # The next iteration waits for the side effects of this one.
    waits = [f"^{name}/body"] if effects and i == first else []
    add(f"next_{i}", "NextIteration", [f"{name}/body:{i}", *waits], types[i])
    _add(inliner, outside, node, f"exit_{i}", "Exit", [f"{name}/switch_{i}"], types[i])
  # The result of an unchanged variable is the entering value.
  tensors = [data[i] if constant[i] else f"{name}/exit_{i}" for i in range(len(types))]
  done = inliner.node(
      inliner.fresh(f"{name}/done"), "NoOp", [f"^{name}/exit_{i}" for i in varying], device)
  inliner.replace(name, tensors, done.name, effects)
  return [(each, inner) for each in inside] + [(each, site) for each in (*outside, done)] + (
      inliner.gather(node, types, tensors, done.name, site))


def _if(inliner, node, site, inner):
  data = data_inputs(node)
  # Any number but 0, and any text but "", is true.
  dtype = inliner.op_defs.signature(node).inputs[0] % REF
  if not data:
    return None
  nodes: List[NodeDef] = []
  pred = data[0]
  if dtype != _BOOL:
    pred = _add(inliner, nodes, node, "to_bool", "ToBool", [pred], dtype)
  branches = [(branch, node.attr[f"{branch}_branch"].func) for branch in ("then", "else")]
  return _branches(inliner, node, site, inner, nodes, [pred], branches)


def _case(inliner, node, site, inner):
  data = data_inputs(node)
  functions = node.attr["branches"].list.func
  if not data or len(functions) < 2:
    return None
  nodes, preds = [], []
  for k in range(len(functions) - 1):  # any other index selects the last branch
    number = inliner.node(
        f"{node.name}/number_{k}", "Const", [control_of(data[0])], node.device,
        dtype=("type", _INT32))
    number.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(k, _INT32))
    preds.append(f"{node.name}/is_{k}")
    nodes += [number, inliner.node(
        preds[-1], "Equal", [data[0], number.name], node.device, T=("type", _INT32))]
  branches = [(f"branch_{k}", function) for k, function in enumerate(functions)]
  return _branches(inliner, node, site, inner, nodes, preds, branches)


def _branches(
    inliner: Any, node: NodeDef, site: Any, inner: Any, nodes: List[NodeDef], preds: Sequence[str],
    branches: Sequence[Tuple[str, NameAttrList]],
) -> Optional[List[Tuple[NodeDef, Any]]]:
  """Puts switches before the branches, and merges after them.

  Args:
    inliner, node, site, inner: as in `lower`.
    nodes: the nodes that compute the predicates.
    preds: for each branch except the last, the predicate that selects it if no earlier branch is
      selected.
    branches: names and functions.
  """
  data, controls = data_inputs(node), control_inputs(node)
  name, device = node.name, node.device
  signature = inliner.op_defs.signature(node)
  # Input 0 is the predicate or index; the others are arguments of the branches.
  in_types = [dtype % REF for dtype in signature.inputs[1:]]
  out_types = [dtype % REF for dtype in signature.outputs]
  arguments = data[1:]
  if len(arguments) != len(in_types):
    return None

  add = functools.partial(_add, inliner, nodes, node)
  effects, last = False, len(branches) - 1
  for stage, (branch, function) in enumerate(branches):
    if stage < last:
      # Port 1 of a Switch is this stage's branch, port 0 all later ones.
      pred, at = preds[stage], f"_at_{stage}" if stage else ""
      decided = add(f"switch_pred{at}", "Switch", [pred, pred, *controls], _BOOL)
      switches = [
          add(f"switch_{i}{at}", "Switch", [argument, pred], dtype)
          for i, (argument, dtype) in enumerate(zip(arguments, in_types))]
    # A branch reads port 1 of its switches; the last branch reads port 0 of the switches before.
    port = 1 if stage < last else 0
    # A control edge from a Switch is signalled for both branches, one from an Identity is not.
    pivot = add(f"{branch}_pivot", "Identity", [f"{decided}:{port}"], _BOOL)
    taken = [
        add(f"{branch}_arg_{i}", "Identity", [f"{found}:{port}"], dtype)
        for i, (found, dtype) in enumerate(zip(switches, in_types))]
    # The next switch runs only if this branch is not selected.
    if stage < last - 1:
      controls = ["^" + add(f"after_{branch}", "Identity", [f"{decided}:0"], _BOOL)]
      arguments = [f"{found}:0" for found in switches]
    effects |= inliner.is_effectful(inliner.op_defs.functions[function.name])
    nodes.append(_call(
        inliner, f"{name}/{branch}", function, [*taken, f"^{pivot}"], in_types, out_types, device))
    add(f"{branch}_done", "Identity", [pivot, f"^{name}/{branch}"], _BOOL)
  names = [f"{name}/{branch}" for branch, _ in branches]
  merges = [
      inliner.node(
          f"{name}/merge_{i}", "Merge", [f"{each}:{i}" for each in names], device,
          T=("type", dtype), N=("i", len(names)))
      for i, dtype in enumerate(out_types)]
  done = inliner.node(
      inliner.fresh(f"{name}/done"), "Merge", [f"{each}_done" for each in names], device,
      T=("type", _BOOL), N=("i", len(names)))
  tensors = [merge.name for merge in merges]
  inliner.replace(name, tensors, done.name, effects)
  result = [(each, inner) for each in nodes] + [(each, site) for each in (*merges, done)]
  return result + inliner.gather(node, out_types, tensors, done.name, site)


def _handed_back(function: FunctionDef, count: int) -> List[bool]:
  """Returns for each variable whether the body of a loop returns the variable unchanged."""
  arguments = [arg.name for arg in function.signature.input_arg]
  results = [function.ret.get(arg.name, "") for arg in function.signature.output_arg]
  if len(arguments) != count or len(results) != count:
    return [False] * count
  # Result of an Identity in the body -> the tensor that it passes on.
  passed_by = {
      f"{node.name}:output:0": node.input[0] for node in function.node_def
      if node.op == "Identity" and node.input}
  for i, result in enumerate(results):
    seen = set()
    while result in passed_by and result not in seen:
      seen.add(result)
      result = passed_by[result]
    results[i] = result
  return [result in (name, f"{name}:0") for name, result in zip(arguments, results)]
