"""Lowering of `While` and `If` to the loops and switches of v1, whose ops can be placed.

TensorFlow lowers them in the same way when it runs them. `While` named "site" becomes, for each
variable that the body changes,

  enter -> merge -> switch -> identity -> [site/body] -> next -> (merge)
                     switch -> exit

with `site/loop_cond` fed by the ops of `site/cond`; a variable that the body hands back as it came
(a resource, a bound) enters the loop once and is read from there. `If` becomes a switch before
each argument, the ops of `site/then` and `site/else`, and a merge behind each result.

The cond, body and branches are left as calls, which the inliner takes next.
"""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

from placeto_tf.graphs.op_defs import REF

_WHILE = ("While", "StatelessWhile")
_IF = ("If", "StatelessIf")
LOWERED = _WHILE + _IF
_BOOL = 10  # DT_BOOL


def functions_of(node: Any) -> Tuple[str, ...]:
  """Names of the functions that a `While` or `If` calls."""
  keys = ("cond", "body") if node.op in _WHILE else ("then_branch", "else_branch")
  return tuple(node.attr[key].func.name if key in node.attr else "" for key in keys)


def lower(inliner: Any, node: Any, site: Any, inner: Any) -> Optional[List[Tuple[Any, Any]]]:
  """The nodes that stand for a `While` or `If`, or None if it has to stay as it is.

  Args:
    inliner: makes nodes and takes the replacements.
    node: with checked attributes.
    site: where the node stands.
    inner: where the ops inside stand.
  """
  return (_while if node.op in _WHILE else _if)(inliner, node, site, inner)


def _split(node):
  data = [text for text in node.input if not text.startswith("^")]
  return data, [text for text in node.input if text.startswith("^")]


def _call(inliner, name, func, inputs, in_types, out_types, device):
  return inliner.node(
      name, "StatefulPartitionedCall", inputs, device, f=("func", func),
      Tin=("types", in_types), Tout=("types", out_types))


def _while(inliner, node, site, inner):
  data, controls = _split(node)
  name, device = node.name, node.device
  types = [dtype % REF for dtype in inliner.op_defs.signature(node).outputs]
  cond, body = node.attr["cond"].func, node.attr["body"].func
  body_function = inliner.op_defs.functions[body.name]
  constant = _handed_back(body_function, len(types))
  varying = [i for i in range(len(types)) if not constant[i]]
  if not varying or len(data) != len(types):
    return None
  first = varying[0]
  trips = node.attr["parallel_iterations"].i if "parallel_iterations" in node.attr else 10
  inside, outside = [], []
  for i, dtype in enumerate(types):
    inside.append(inliner.node(
        f"{name}/enter_{i}", "Enter", [data[i], *controls], device, T=("type", dtype),
        frame_name=("s", name.encode()), is_constant=("b", constant[i]),
        parallel_iterations=("i", trips)))
  for i in varying:
    inside.append(inliner.node(
        f"{name}/merge_{i}", "Merge", [f"{name}/enter_{i}", f"{name}/next_{i}"], device,
        T=("type", types[i]), N=("i", 2)))
  cond_inputs = [f"{name}/{'enter' if constant[i] else 'merge'}_{i}" for i in range(len(types))]
  cond_function = inliner.op_defs.functions[cond.name]
  cond_type = cond_function.signature.output_arg[0].type if (
      cond_function.signature.output_arg) else _BOOL
  inside.append(_call(
      inliner, f"{name}/cond", cond, [*cond_inputs, f"^{name}/merge_{first}"], types, [cond_type],
      device))
  decides = f"{name}/cond"
  if cond_type != _BOOL:
    inside.append(inliner.node(
        f"{name}/to_bool", "ToBool", [decides], device, T=("type", cond_type)))
    decides = f"{name}/to_bool"
  inside.append(inliner.node(f"{name}/loop_cond", "LoopCond", [decides], device))
  for i in varying:
    inside.append(inliner.node(
        f"{name}/switch_{i}", "Switch", [f"{name}/merge_{i}", f"{name}/loop_cond"], device,
        T=("type", types[i])))
    inside.append(inliner.node(
        f"{name}/identity_{i}", "Identity", [f"{name}/switch_{i}:1"], device, T=("type", types[i])))
  body_inputs = [f"{name}/{'enter' if constant[i] else 'identity'}_{i}" for i in range(len(types))]
  inside.append(_call(
      inliner, f"{name}/body", body, [*body_inputs, f"^{name}/identity_{first}"], types, types,
      device))
  effects = inliner.is_effectful(body_function)
  for i in varying:
    inputs = [f"{name}/body:{i}"]
    if effects and i == first:  # the next round begins when this one has done what it does
      inputs.append(f"^{name}/body")
    inside.append(inliner.node(
        f"{name}/next_{i}", "NextIteration", inputs, device, T=("type", types[i])))
    outside.append(inliner.node(
        f"{name}/exit_{i}", "Exit", [f"{name}/switch_{i}"], device, T=("type", types[i])))
  tensors = [data[i] if constant[i] else f"{name}/exit_{i}" for i in range(len(types))]
  done = inliner.node(
      inliner.fresh(f"{name}/done"), "NoOp", [f"^{name}/exit_{i}" for i in varying], device)
  inliner.replace(name, tensors, done.name, effects)
  return [(each, inner) for each in inside] + [(each, site) for each in (*outside, done)] + (
      inliner.gather(node, types, tensors, done.name, site))


def _if(inliner, node, site, inner):
  data, controls = _split(node)
  name, device = node.name, node.device
  signature = inliner.op_defs.signature(node)
  in_types = [dtype % REF for dtype in signature.inputs]
  out_types = [dtype % REF for dtype in signature.outputs]
  if len(data) != len(in_types):
    return None
  nodes = []
  pred = data[0]
  if in_types[0] != _BOOL:
    nodes.append(inliner.node(
        f"{name}/to_bool", "ToBool", [pred], device, T=("type", in_types[0])))
    pred = f"{name}/to_bool"
  nodes.append(inliner.node(
      f"{name}/switch_pred", "Switch", [pred, pred, *controls], device, T=("type", _BOOL)))
  for port, branch in ((1, "then"), (0, "else")):
    nodes.append(inliner.node(
        f"{name}/{branch}_pivot", "Identity", [f"{name}/switch_pred:{port}"], device,
        T=("type", _BOOL)))
  for i, dtype in enumerate(in_types[1:]):
    nodes.append(inliner.node(
        f"{name}/switch_{i}", "Switch", [data[i + 1], pred], device, T=("type", dtype)))
    for port, branch in ((1, "then"), (0, "else")):
      # Waiting for a switch does not tell which way it went; waiting for what is behind it does.
      nodes.append(inliner.node(
          f"{name}/{branch}_arg_{i}", "Identity", [f"{name}/switch_{i}:{port}"], device,
          T=("type", dtype)))
  effects = False
  for branch in ("then", "else"):
    func = node.attr[f"{branch}_branch"].func
    effects |= inliner.is_effectful(inliner.op_defs.functions[func.name])
    arguments = [f"{name}/{branch}_arg_{i}" for i in range(len(in_types) - 1)]
    nodes.append(_call(
        inliner, f"{name}/{branch}", func, [*arguments, f"^{name}/{branch}_pivot"], in_types[1:],
        out_types, device))
    nodes.append(inliner.node(
        f"{name}/{branch}_done", "Identity", [f"{name}/{branch}_pivot", f"^{name}/{branch}"],
        device, T=("type", _BOOL)))
  merges = [
      inliner.node(
          f"{name}/merge_{i}", "Merge", [f"{name}/then:{i}", f"{name}/else:{i}"], device,
          T=("type", dtype), N=("i", 2))
      for i, dtype in enumerate(out_types)]
  at_top_without_results = not out_types and not site.depth
  done = inliner.node(
      inliner.fresh(f"{name}/done"), "Merge", [f"{name}/then_done", f"{name}/else_done"], device,
      T=("type", _BOOL), N=("i", 2))
  tensors = [merge.name for merge in merges]
  inliner.replace(name, tensors, done.name, effects)
  result = [(each, inner) for each in nodes] + [(each, site) for each in (*merges, done)]
  if at_top_without_results:
    return result + [(inliner.node(name, "NoOp", [f"^{done.name}"], device), site)]
  return result + inliner.gather(node, out_types, tensors, done.name, site)


def _handed_back(function: Any, count: int) -> List[bool]:
  """Which variables the body of a loop returns as it got them."""
  arguments = [arg.name for arg in function.signature.input_arg]
  results = [function.ret.get(arg.name, "") for arg in function.signature.output_arg]
  if len(arguments) != count or len(results) != count:
    return [False] * count
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
