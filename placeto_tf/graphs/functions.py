"""Inlines function calls, so that the ops inside can be placed one by one.

Op "op" of a function that is called by the node "site" is named "site/op"; each call gets ops of
its own. A reader of output k of the call reads the op that computes this output. An op that waits
for the call waits for "site/done", which runs after all results and side effects. A call in the
graph itself, not in a function, also keeps an op of its name that gathers the results, because
fetches and signatures may name the call. `While`, `If` and `Case` are lowered in the same pass
(`control_flow`).

A call is not inlined if XLA compiles the call. Functions that call themselves, and functions with
attributes of their own, which TensorFlow's Python cannot import, are refused.
"""

from __future__ import annotations

import dataclasses
import graphlib
import re
from typing import Container, Dict, Iterable, List, Mapping, Optional, Set, Tuple

from placeto_tf.errors import GraphError
from placeto_tf.graphs import control_flow, tensor_names
from placeto_tf.graphs.colocation import COLOCATED, rename_colocated
from placeto_tf.graphs.op_defs import REF, OpDefs
from placeto_tf.on_use import AttrValue, FunctionDef, GraphDef, NameAttrList, NodeDef, tf

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_WHOLE_DEVICE = re.compile(r"(?i)/(device:\w+|[cgt]pu):\d+\Z")
MAX_NODES = 1 << 20  # ops of functions; functions that call others twice, and so on, may give more

_READS = ("ReadVariableOp", "NoOp", "Identity", "VarHandleOp")
_COMPILED = "_XlaMustCompile"


@dataclasses.dataclass(frozen=True)
class Site:
  """The place of a node.

  Attributes:
    inside: whether a call, loop or branch encloses the node.
    anchored: whether an op without inputs would run outside of its loop or branch.
    call: the op of the graph itself that the node comes from, "" for that op itself.
  """

  inside: bool = False
  anchored: bool = False
  call: str = ""


def inline_functions(
    graph_def: GraphDef, own_devices: Optional[Dict[str, str]] = None,
) -> Tuple[GraphDef, Tuple[str, ...]]:
  """Inlines calls and lowers `While`, `If` and `Case`.

  Args:
    graph_def: not changed.
    own_devices: for a live graph, where calls themselves are placed; None for other graphs. Ops of
      a call are then colocated with the op that keeps the call's name. Ops for which the function
      states a device are not, because they run there wherever the call is: they are added to this
      mapping from ops to devices.

  Returns:
    A new GraphDef, or the same one if there is nothing to inline, and notes on calls that were not
    inlined.

  Raises:
    GraphError: a call does not fit its function, a body is inconsistent, a function calls itself or
      has attributes of its own, or the result would be larger than `MAX_NODES`.
  """
  op_defs = OpDefs(graph_def.library)
  calls = {*CALLS, *control_flow.LOWERED, *op_defs.functions}
  if not any(node.op in calls for node in graph_def.node):
    return graph_def, ()
  return Inliner(graph_def, op_defs, own_devices).run()


class Inliner:
  """One pass over a graph; `control_flow` adds its nodes through it."""

  def __init__(
      self, graph_def: GraphDef, op_defs: OpDefs, own_devices: Optional[Dict[str, str]] = None):
    self.op_defs = op_defs
    self.own_devices = own_devices
    self._graph_def = graph_def
    self._outputs: Dict[Tuple[str, int], str] = {}  # (call, output) -> tensor that replaces it
    self._controls: Dict[str, str] = {}  # call -> op to wait for
    self._effectful: Set[str] = set()  # calls that must run if one of their outputs is used
    self._names = {node.name for node in graph_def.node}
    self._whole: Dict[str, str] = {}  # call that is not inlined -> reason

  def run(self) -> Tuple[GraphDef, Tuple[str, ...]]:
    """Returns the inlined graph and notes."""
    self._check_size()
    # In v1 loops and branches, an op without inputs would run outside of them.
    anchored = any(node.op in ("Enter", "Switch") for node in self._graph_def.node)
    # A stack keeps the order of the file, and puts bodies in the place of their calls.
    pending = [(node, Site(anchored=anchored)) for node in reversed(self._graph_def.node)]
    done = []
    while pending:
      node, site = pending.pop()
      expanded = self._expand(node, site)
      if expanded is None:
        done.append(self._colocated(node, site) if site.call else node)
      else:
        call = site.call or (node.name if self.own_devices is not None else "")
        # Ops of a call get the device that the function around the call states for the call.
        devices = self.own_devices or {}
        for each, _ in expanded if node.name in devices else ():
          devices.setdefault(each.name, each.device)
        pending += [(each, dataclasses.replace(where, call=call))
                    for each, where in reversed(expanded)]
    return self._assemble(done), tuple(
        f"{name!r} is kept as one op, costed as if it only moved its inputs and outputs: {why}"
        for name, why in list(self._whole.items())[:5])

  def _colocated(self, node: NodeDef, site: Site) -> NodeDef:
    """Returns the node, colocated with the op that keeps the name of the node's call."""
    if node.name != site.call and node.name not in (self.own_devices or ()):
      value = COLOCATED + site.call.encode()
      if "_class" not in node.attr or value not in node.attr["_class"].list.s:
        node.attr["_class"].list.s.append(value)
    return node

  def node(self, name: str, op: str, inputs=(), device: str = "", **attrs) -> NodeDef:
    """Makes a NodeDef.

    Args:
      name: name of the node; later nodes cannot have it.
      op: its type.
      inputs: tensors and control inputs.
      device: of the node.
      **attrs: attributes by field, as in `T=("type", 1)`.
    """
    node = tf.compat.v1.NodeDef()
    node.name, node.op, node.device = name, op, device
    node.input.extend(inputs)
    self._names.add(name)
    for key, (field, value) in attrs.items():
      if field == "func":
        node.attr[key].func.CopyFrom(value)
      elif field == "types":
        node.attr[key].list.SetInParent()
        node.attr[key].list.type.extend(value)
      else:
        setattr(node.attr[key], field, value)
    return node

  def fresh(self, name: str) -> str:
    """Returns a name that no op has."""
    return tensor_names.fresh(name, self._names)

  def prefix(self, site: str, names: Iterable[str]) -> str:
    """Returns the prefix for names of a body's ops: the site's name, unless it causes a clash.

    Returns:
      A prefix with which the name of no op is taken.
    """
    found, count = site, 0
    while any(f"{found}/{name}" in self._names for name in names):
      count += 1
      found = f"{site}/call_{count}"
    return found

  def replace(self, call: str, outputs: List[str], control: str, effectful: bool) -> None:
    """Records which tensors stand for a call's outputs, and which op for the call itself.

    Args:
      call: name of the call.
      outputs: for each output, the tensor that replaces it.
      control: the op that others wait for instead of the call.
      effectful: whether the call must run if one of its outputs is used.
    """
    for port, tensor in enumerate(outputs):
      self._outputs[call, port] = tensor
    self._controls[call] = control
    if effectful:
      self._effectful.add(call)

  def gather(
      self, node: NodeDef, types: Tuple[int, ...], tensors, control: str, site: Site) -> List:
    """Makes the op that keeps a call's name for fetches; none inside of functions.

    Args:
      node: the call.
      types: DataTypes of its outputs.
      tensors: the tensors that replace its outputs.
      control: op that waits for the call.
      site: of the call.

    Returns:
      (node, site), in a list; an empty list inside of functions.
    """
    if site.inside:
      return []
    # A call without results still needs an op of its name, which other ops can wait for.
    if not types:
      return [(self.node(node.name, "NoOp", [f"^{control}"], node.device), site)]
    keep = self.node(node.name, "IdentityN", [*tensors, f"^{control}"], node.device,
                     T=("types", [dtype % REF for dtype in types]))
    return [(keep, site)]

  def is_effectful(self, function: FunctionDef) -> bool:
    """Returns whether the function has side effects."""
    types = {node.name: node.op for node in function.node_def}
    return any(types.get(name) not in _READS for name in function.control_ret.values())

  def _check_size(self) -> None:
    """Raises GraphError if inlining would not end in reasonable time."""
    functions = self.op_defs.functions
    calls = {name: [callee for node in function.node_def for callee in _callees(node)
                    if callee in functions] for name, function in functions.items()}
    sizes: Dict[str, int] = {}  # of each function, with the functions that it calls
    try:
      for name in graphlib.TopologicalSorter(calls).static_order():  # callees come first
        sizes[name] = len(functions[name].node_def) + sum(sizes[callee] for callee in calls[name])
    except graphlib.CycleError as error:
      raise GraphError(
          f"function {error.args[1][0]!r} calls itself, so its ops cannot be placed one by one; "
          "write it as a loop (tf.while_loop)") from None
    if MAX_NODES < sum(
        sizes.get(callee, 0) for node in self._graph_def.node for callee in _callees(node)):
      raise GraphError(
          f"inlining the function calls gives more than {MAX_NODES} ops; place the graph of one of "
          "its functions instead")

  def _expand(self, node: NodeDef, site: Site) -> Optional[List[Tuple[NodeDef, Site]]]:
    """Returns the nodes that replace the node, or None if it is no call to inline."""
    if node.op in control_flow.LOWERED:
      return self._lower(node, site)
    function = self.op_defs.functions.get(next(iter(_callees(node)), ""))
    if function is None:
      return None
    if _COMPILED in node.attr and node.attr[_COMPILED].b:
      self._whole[node.name] = "it is compiled by XLA"
      return None
    if function.signature.attr:
      raise GraphError(
          f"function {function.signature.name!r} has attributes of its own, with which TensorFlow "
          "does not import it into Python; trace it with tf.function, and export the graph again")
    return self._inline(node, function, site)

  def _lower(self, node: NodeDef, site: Site) -> Optional[List[Tuple[NodeDef, Site]]]:
    self.op_defs.signature(node)
    if not all(name in self.op_defs.functions for name in control_flow.functions_of(node)):
      return None
    # Anchored: ops without inputs would run outside of the loop or branch.
    lowered = control_flow.lower(self, node, site, Site(inside=True, anchored=True))
    if lowered is None:
      self._whole[node.name] = (
          "it has a single branch" if node.op in control_flow.CASE
          else "its loop has no variable that changes")
    return lowered

  def _inline(self, node: NodeDef, function: FunctionDef, site: Site) -> List[Tuple[NodeDef, Site]]:
    data, controls = tensor_names.data_inputs(node), tensor_names.control_inputs(node)
    body = _Body(self, node, function, data)
    inner = Site(inside=True, anchored=site.anchored)
    expanded = []
    # Ops without inputs from the body wait for one op instead of all control inputs of the call.
    if len(controls) > 1:
      start = self.node(self.fresh(f"{node.name}/start"), "NoOp", controls, node.device)
      expanded.append((start, site))
      controls = [f"^{start.name}"]
    # Constants in a loop or branch wait for an argument, so that they run inside it.
    elif not controls and site.anchored and data:
      controls = [tensor_names.control_of(data[0])]
      body.anchor_constants_only = True
    expanded += [(copy, inner) for copy in body.nodes(controls)]
    tensors = body.results()
    types = self.op_defs.signature(node).outputs
    if len(types) != len(tensors):
      raise GraphError(
          f"op {node.name!r} ({node.op}) expects {len(types)} results of function "
          f"{function.signature.name!r}, which has {len(tensors)}; export the graph again")
    # "done" waits for all results and side effects.
    waits = list(dict.fromkeys(
        [*map(tensor_names.control_of, tensors), *body.side_effects()]))
    at_top_without_results = not types and not site.inside
    done = self.node(
        node.name if at_top_without_results else self.fresh(f"{node.name}/done"), "NoOp",
        waits or controls, node.device)
    self.replace(node.name, tensors, done.name, self.is_effectful(function))
    expanded.append((done, site))
    if types:
      expanded += self.gather(node, types, tensors, done.name, site)
    return expanded

  def _assemble(self, nodes: List[NodeDef]) -> GraphDef:
    """Returns the new GraphDef, with inputs from calls rewritten."""
    result = type(self._graph_def)()
    result.versions.CopyFrom(self._graph_def.versions)
    result.library.CopyFrom(self._graph_def.library)
    # Calls for which some op waits.
    awaited = {
        text[1:] for node in nodes for text in node.input if text.startswith("^")}
    for node in nodes:
      copy = result.node.add()
      copy.CopyFrom(node)
      data: List[str] = []
      controls: List[str] = []
      changed = False
      for text in node.input:
        found = self._resolve(text)
        changed |= found != text
        (controls if found.startswith("^") else data).append(found)
        call = tensor_names.op_of(text)
        if call in self._effectful and call not in awaited and not text.startswith("^"):
          # No op waits for the call, so readers of its results must wait for its side effects.
          controls.append(f"^{self._controls[call]}")
          changed = True
      if changed:
        del copy.input[:]
        copy.input.extend(data)
        own = f"^{node.name}"
        copy.input.extend(text for text in dict.fromkeys(controls) if text != own)
    keep_known_classes(result.node, {node.name for node in result.node})
    return result

  def _resolve(self, text: str) -> str:
    """Returns the replacement of an input; results of a call may be results of another call."""
    # A chain of replacements is at most as long as there are replacements.
    for _ in range(len(self._outputs) + len(self._controls) + 1):
      if text.startswith("^"):
        found = self._controls.get(text[1:])
        if found is None or found == text[1:]:
          return text
        text = f"^{found}"
      else:
        found = self._outputs.get(tensor_names.parse(text))
        if found is None or found == text:
          return text
        text = found
    raise GraphError(f"function calls pass {text!r} round in a circle; export the graph again")


class _Body:
  """The nodes of a function for the graph that calls it."""

  def __init__(self, inliner: Inliner, call: NodeDef, function: FunctionDef, data: List[str]):
    self._inliner = inliner
    self._call = call
    self._function = function
    self._inside = {node.name for node in function.node_def}
    self._prefix = inliner.prefix(call.name, self._inside)
    self.anchor_constants_only = False
    names = [arg.name for arg in function.signature.input_arg]
    if len(names) != len(data):
      raise GraphError(
          f"op {call.name!r} ({call.op}) gives {len(data)} inputs to function "
          f"{function.signature.name!r}, which takes {len(names)}; export the graph again")
    self._arguments = dict(zip(names, data))  # argument -> tensor that the call passes
    # Node -> output argument -> (first output, number of outputs).
    self._ranges: Dict[str, Mapping[str, Tuple[int, int]]] = {}
    self._copies = [self._copy(node) for node in function.node_def]
    for node, copy in zip(function.node_def, self._copies):
      if node.name in self._ranges:
        raise GraphError(
            f"op name {node.name!r} appears twice in function {function.signature.name!r}; names "
            "must be unique")
      self._ranges[node.name] = inliner.op_defs.signature(copy).output_ranges

  def nodes(self, controls: List[str]) -> List[NodeDef]:
    """Returns the ops of the body; ops without inputs from the body wait for the controls."""
    for node, copy in zip(self._function.node_def, self._copies):
      data: List[str] = []
      waits: List[str] = []
      # Nodes start the body if none of their inputs comes from the body.
      starts, bare = True, not node.input
      for text in node.input:
        found, inside = self._translate(text)
        starts &= not inside
        (waits if found.startswith("^") else data).append(found)
      if bare or (starts and not self.anchor_constants_only):
        waits += controls
      copy.input.extend(data)
      copy.input.extend(dict.fromkeys(waits))
    return self._copies

  def results(self) -> List[str]:
    """Returns the tensors that are the function's outputs."""
    return [self._translate(self._function.ret.get(arg.name, ""))[0]
            for arg in self._function.signature.output_arg]

  def side_effects(self) -> List[str]:
    """Returns the control inputs of the ops that run for their effects."""
    # Sorted, because the order of a map differs from process to process.
    return [self._translate(f"^{name}")[0] for name in sorted(self._function.control_ret.values())]

  def _translate(self, text: str) -> Tuple[str, bool]:
    """Returns an input's name in the graph, and whether the input comes from the body."""
    if text.startswith("^"):
      name = text[1:]
      if name in self._ranges:
        return f"^{self._prefix}/{name}", True
      if name in self._arguments:
        return tensor_names.control_of(self._arguments[name]), False
      raise self._dangling(text)
    # In bodies an input is "argument", "argument:0" or "node:output:index".
    name, _, rest = text.partition(":")
    if name in self._arguments and rest in ("", "0"):
      return self._arguments[name], False
    output, _, port = rest.partition(":")
    start, count = self._ranges.get(name, {}).get(output, (0, 0))
    index = int(port) if port.isdecimal() and len(port) < 10 else 0
    if index >= count:
      raise self._dangling(text)
    return f"{self._prefix}/{name}:{start + index}", True

  def _dangling(self, text: str) -> GraphError:
    return GraphError(
        f"input {text!r} in function {self._function.signature.name!r} names no output of its "
        "body; export the graph again")

  def _copy(self, node: NodeDef) -> NodeDef:
    """Returns the node under its new name, without inputs."""
    copy = tf.compat.v1.NodeDef()
    copy.CopyFrom(node)
    copy.name = f"{self._prefix}/{node.name}"
    self._inliner.fresh(copy.name)
    copy.device = node.device or self._call.device
    if self._inliner.own_devices is not None and _WHOLE_DEVICE.search(node.device):
      self._inliner.own_devices[copy.name] = node.device
    del copy.input[:]
    # Colocation with ops of the body, under their new names.
    rename_colocated(copy, lambda mate: f"{self._prefix}/{mate}" if mate in self._inside else None)
    if "frame_name" in copy.attr:  # two calls are two loops
      copy.attr["frame_name"].s = self._prefix.encode() + b"/" + copy.attr["frame_name"].s
    if "shared_name" in copy.attr and not copy.attr["shared_name"].s:
      # Calls share resources that are named only by their op.
      copy.attr["shared_name"].s = node.name.encode()
    return copy


def _callees(node: NodeDef) -> List[str]:
  """Returns the functions that are inlined for a node."""
  if node.op in CALLS:
    return [node.attr["f"].func.name] if "f" in node.attr else []
  if node.op in control_flow.LOWERED:
    return [name for name in control_flow.functions_of(node) if name]
  return [node.op]


def functions_in(attrs: Iterable[AttrValue]) -> List[NameAttrList]:
  """Returns the functions in attributes, which can be renamed there."""
  return [each for attr in attrs
          for each in (*((attr.func,) if attr.HasField("func") else ()), *attr.list.func)]


def named_functions(node: NodeDef) -> List[str]:
  """Returns all functions that a node names in its op type and attributes."""
  return [node.op, *(each.name for each in functions_in(node.attr.values()))]


def keep_known_classes(nodes: Iterable[NodeDef], known: Container[str]) -> None:
  """Drops colocation with missing ops, such as inlined calls, because TensorFlow refuses it.

  Args:
    nodes: NodeDefs, changed in place.
    known: names of ops.
  """
  for node in nodes:
    rename_colocated(node, lambda mate: mate if mate in known else None)
