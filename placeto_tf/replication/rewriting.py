"""Writes the replicas: a GraphDef with R copies of some ops, and ops that combine them.

Op "a" of replica r is "replica_r/a". The op that combines the replicas' tensors "a:0" is
"all_reduce/a_0" (a sum and its scaling, or a maximum) or "all_gather/a_0" (a concatenation of
rows). Small sums are packed together, "all_reduce/pack_k", and large ones are divided into pieces,
"all_reduce/pack_k/piece_i" (see `packing`). Feeds and fetches keep their names: a feed takes the
global batch, "whole_batch/x_0/split" divides it, and "replica_r/x" is replica r's part.

Ops that are no copies (variables, the optimizer) exist once under their own names. With mirrored
variables, ops under their own names belong to the first replica, and replica r has "replica_r/a". A
sum is computed once for all replicas (with two mirrored replicas, once by each); gathered rows, and
the tensors that a pack is split into, are made once for each replica. A fetch, and a write outside
the step, waits for the same op of the other replicas.

Dimensions: N needed ops, R replicas.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Callable, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

import numpy as np

from placeto_tf.graphs.colocation import rename_colocated
from placeto_tf.graphs.shapes import PLACEHOLDERS, WITH_DEFAULT, declared_shape, write_shape
from placeto_tf.graphs.tensor_names import op_of, parse
from placeto_tf.on_use import GraphDef, NodeDef, tf
from placeto_tf.replication import exponents, op_roles
from placeto_tf.replication.collectives import Collectives
from placeto_tf.replication.mirroring import Plan
from placeto_tf.replication.naming import Names
from placeto_tf.replication.nodes import NodeWriter, tensor_name

_SEED_STEP = 0x5851F42D  # between the seeds of two replicas
# Attributes that name state which ops share, within a step and across steps.
_NAMES_IN_STEP = ("frame_name", "tensor_array_name", "stack_name")
_NAMES_BEYOND = ("shared_name",)


@dataclasses.dataclass(frozen=True, eq=False)
class Rewritten:
  """The replicated GraphDef.

  Attributes:
    graph_def: the nodes.
    replica_of: name of each op that belongs to a replica -> the replica.
    original_of: name of each op that copies an op of the source -> that op's name.
    divided: feeds that take the global batch and are divided among the replicas.
    own_reductions: as in `ReplicatedGraph`.
    owned: names of variables that hold examples; each replica has its own.
    of_first: means and sums besides the step, such as a loss that is not fetched, which are of the
      first replica's examples.
  """

  graph_def: GraphDef
  replica_of: Dict[str, int]
  original_of: Dict[str, str]
  divided: FrozenSet[str]
  own_reductions: FrozenSet[str]
  owned: FrozenSet[str]
  of_first: List[str]


class Writer:
  """Writes the replicas of a plan."""

  def __init__(self, plan: Plan):
    flow, self._plan = plan.flow, plan
    self._flow, self._propagated = flow, plan.propagated
    self._partition, self._mirrors = plan.partition, plan.mirrors
    self._replicas = plan.scaling.replicas
    # Versions and functions are those of the source.
    source = flow.graph.origin.graph_def
    self._writer = NodeWriter(type(source)())
    self._writer.graph_def.versions.CopyFrom(source.versions)
    self._writer.graph_def.library.CopyFrom(source.library)
    self._op_names = flow.graph.op_names
    self._ends = {self._op_names[op] for op in (*plan.run, *(op for op, _ in plan.fetched))}
    self._names = Names(plan)
    self._collectives = Collectives(plan, self._names, self._writer)
    self._fixed: Dict[Tuple[str, exponents.Fix], str] = {}  # (tensor, fix) -> result
    self._divided = plan.partition.copies & plan.propagated.fed  # feeds
    self._of_first: List[str] = []

  def run(self) -> Rewritten:
    """Writes all nodes."""
    flow, partition = self._flow, self._partition
    # Frames of the loops that each replica runs for itself.
    frames = {flow.frames[op].encode() for op in partition.copies if self._own_frame(op)}
    # Nodes in their order: outside of the step, copies, single or mirrored ops, then all-reduces.
    for node in flow.graph.origin.graph_def.node:
      op = flow.graph.op_index.get(node.name)
      if op is None:
        self._outside(node, frames)
        continue
      if op in partition.copies:
        for r in range(self._replicas):
          self._copy(op, r)
      # An op that is no copy: one node, or a node for each replica if the op is mirrored.
      if op in partition.shared or op not in self._propagated.copied:
        for r in self._names.owners(node.name):
          own = self._no_copy(node, r, functools.partial(self._input, op, r))
          if r:
            self._rename(own, r, (*_NAMES_IN_STEP, *_NAMES_BEYOND))
      # All-reduces of the op's tensors follow directly.
      self._collectives.write(op)
    self._writer.graph_def.node.extend(self._collectives.packs.graph_def.node)
    self._keep_fetched_names()
    return Rewritten(
        self._writer.graph_def, self._writer.replica_of, self._writer.original_of,
        frozenset(f"{self._op_names[op]}:0" for op in self._divided), self._collectives.own(),
        frozenset(self._op_names[op] for op in self._propagated.owned), self._of_first)

  # Copies.

  def _own_frame(self, op: int) -> bool:
    """Returns whether an op is in a loop that each replica runs for itself."""
    return bool(self._flow.frames[op]) and self._flow.frames[op] not in self._propagated.merged

  def _copy(self, op: int, r: int) -> None:
    flow, name = self._flow, self._op_names[op]
    # A feed is one placeholder for the global batch; each replica reads its part of a Split.
    if op in self._divided:
      self._divide_feed(op, r)
      return
    node = self._writer.copy(flow.nodes[op], f"{self._names.prefixes[r]}/{name}", r)
    # Inputs are the replica's own, or global values.
    controls: List[str] = []
    data: List[str] = []
    for text in flow.nodes[op].input:
      if text.startswith("^"):
        controls.append(f"^{self._names.in_replica(text[1:], r)}")
      else:
        data.append(self._copy_input(op, len(data), text, r))
    if flow.types[op] in op_roles.PIPELINES and r:
      # A fixed order, so that the same examples go to the same replica in every run.
      controls.append(f"^{self._names.prefixes[r - 1]}/{name}")
    node.input.extend(data)
    node.input.extend(dict.fromkeys(controls))
    if op in self._propagated.copied:
      self._colocate(node, lambda mate: self._names.in_replica(mate, r), True)
    else:  # a replica's constant may be on any device of the replica
      node.attr.pop("_class", None)
    # A loop that runs once for all replicas keeps its frame name.
    names = [key for key in _NAMES_IN_STEP if key != "frame_name" or self._own_frame(op)]
    self._rename(node, r, names)
    # Variables that keep examples are resources of each replica alone.
    if op in self._propagated.owned and r:
      self._rename(node, r, _NAMES_BEYOND)
    if op in self._plan.scaling.slices:
      self._set_rows(node, op, r)
    if op in self._propagated.random_ops and r:
      self._other_random_numbers(op, node, r)

  def _set_rows(self, node: NodeDef, op: int, r: int) -> None:
    """Writes replica r's rows of a constant into its copy."""
    whole = self._plan.scaling.slices[op]
    axis = self._propagated.specs[op][0].axis  # type: ignore[union-attr]
    # [R * rows] -> R equal parts along the axis of the examples.
    node.attr["value"].tensor.CopyFrom(
        tf.make_tensor_proto(np.split(whole, self._replicas, axis=axis)[r]))

  def _rename(self, node: NodeDef, r: int, keys: Sequence[str]) -> None:
    """Adds the replica's prefix to names of loops and resources in an op's attributes."""
    for key in keys:
      if key in node.attr and node.attr[key].s:
        node.attr[key].s = f"{self._names.prefixes[r]}/".encode() + node.attr[key].s

  def _copy_input(self, op: int, i: int, text: str, r: int) -> str:
    """Returns the input of replica r's copy of an op."""
    name, port = parse(text)
    tensor = (self._flow.graph.op_index[name], port)
    # The fix that the propagation chose for this input.
    fix = self._propagated.fixes.get((op, i))
    if fix is None:
      return self._names.of_replica(tensor, r)
    # Read a combined value from its all-reduce; ops that are no copies have no other values.
    if fix[0] == exponents.GLOBAL:
      combined = self._collectives.read.get(tensor)
      return combined[r] if combined else tensor_name(self._names.once(name, r), port)
    found = self._names.of_replica(tensor, r)
    anchor = found if self._flow.frames[op] or self._flow.types[op] == "Merge" else None
    dtype = self._flow.dtype(tensor) % 100
    if fix[0] == exponents.SLICE and anchor is None:
      return self._part_of(found, r, fix[1], dtype)
    made = f"{self._names.prefixes[r]}/{self._op_names[op]}/input_{i}"
    # Reuse the op of an equal fix in the same loop or branch.
    key = (found, (*fix, r, self._flow.frames[op], bool(anchor)))
    if key not in self._fixed:
      with self._writer.owned(r):
        if fix[0] == exponents.SCALE:
          # Multiply by R^exponent, which gives the value the wanted exponent.
          factor = self._replicas ** fix[1]
          self._fixed[key] = self._writer.scale(
              made, found, int(factor) if self._flow.is_integer(tensor) else factor, dtype, anchor)
        elif fix[0] == exponents.SLICE:
          self._fixed[key] = self._writer.part(
              made, found, r, self._replicas, fix[1], dtype, anchor)
        else:
          self._fixed[key] = self._writer.offset(
              made, found, r, fix[1], fix[2], dtype, anchor)
    return self._fixed[key]

  def _part_of(self, tensor: str, r: int, axis: int, dtype: int) -> str:
    """Returns replica r's part of a whole tensor, which is split once for all replicas."""
    name, port = parse(tensor)
    made = f"{self._names.whole_batch}/{name}_{port}/split"
    if (tensor, (exponents.SLICE, axis)) not in self._fixed:
      self._fixed[tensor, (exponents.SLICE, axis)] = self._writer.part(
          made, tensor, 0, self._replicas, axis, dtype)
    return tensor_name(made, r)

  def _divide_feed(self, op: int, r: int) -> None:
    """Divides a feed of the global batch in equal parts."""
    name, dtype = self._op_names[op], self._flow.dtype((op, 0)) % 100
    # The first replica writes the placeholder and its division.
    if not r:
      # [b, ...] -> [R b, ...]
      shape = self._flow.graph.origin.feed_shapes[f"{name}:0"]
      node = self._writer.copy(self._flow.nodes[op], name, None)
      self._make_placeholder(op, node, (shape[0] * self._replicas, *shape[1:]))
    part = self._writer.new(
        f"{self._names.prefixes[r]}/{name}", "Identity", [self._part_of(name, r, 0, dtype)],
        T=dtype)
    self._writer.replica_of[part.name], self._writer.original_of[part.name] = r, name

  def _make_placeholder(self, op: int, node: NodeDef, shape: Tuple[int, ...]) -> None:
    """Turns a fed op into a Placeholder; an unknown batch is still unknown, a default is kept."""
    declared = declared_shape(node)
    # The default is divided like a feed. It exists once, or is a constant.
    given = [text for text in self._flow.nodes[op].input if node.op == WITH_DEFAULT]
    divided = {self._op_names[each] for each in self._propagated.copied} & {*map(op_of, given)}
    if node.op in (*PLACEHOLDERS, WITH_DEFAULT) and (not declared or declared[0] == -1) and (
        not divided):
      node.input.extend(
          each for text in given for each in self._input_outside(frozenset(), 0, text))
      return
    node.op = "Placeholder"
    node.attr.clear()
    node.attr["dtype"].type = self._flow.dtype((op, 0)) % 100
    write_shape(node.attr["shape"].shape, shape)

  def _other_random_numbers(self, op: int, node: NodeDef, r: int) -> None:
    """Gives replica r random numbers of its own, from the op's seed."""
    op_type = self._flow.types[op]
    if op_type in op_roles.STATEFUL_RANDOM:
      if not any(key in node.attr and node.attr[key].i for key in ("seed", "seed2")):
        return  # replicas' random numbers differ without a seed
      # Seeds are 31 bits.
      node.attr["seed2"].i = (node.attr["seed2"].i + r * _SEED_STEP) % (1 << 31)
    elif op_type in op_roles.SEEDED_RANDOM:
      # The input with the seed differs by op type.
      i = 0 if op_type in op_roles.KEYS else 2 if op_type == "StatelessMultinomial" else 1
      dtype = self._flow.dtype(self._flow.inputs[op][i])
      step = self._writer.constant(
          f"{node.name}/other_seed/step", (r * _SEED_STEP) % (1 << 31), dtype)
      seed = self._writer.new(f"{node.name}/other_seed", "AddV2", [node.input[i], step], T=dtype)
      node.input[i] = seed.name
      self._writer.replica_of[step] = self._writer.replica_of[seed.name] = r

  # Ops that are no copies: they exist once, or are mirrored.

  def _no_copy(
      self, original: NodeDef, r: int, translate: Callable[[str], Sequence[str]]
  ) -> NodeDef:
    """Writes an op that is no copy: its only node, or the node of replica r."""
    name, owners = original.name, self._names.owners(original.name)
    node = self._writer.copy(original, self._names.once(name, r), r if len(owners) > 1 else None)
    node.attr.pop("_output_shapes", None)  # gathered rows have another shape
    inputs = [found for text in original.input for found in translate(text)]
    data = [text for text in inputs if not text.startswith("^")]
    controls = [text for text in inputs if text.startswith("^")]
    # A fetch, and a write outside the step, waits for the same op of the other replicas.
    if not r and (name in self._ends or (
        name in self._mirrors.outside and op_roles.is_update(original.op))):
      controls += [f"^{self._names.once(name, other)}" for other in owners[1:]]
    node.input.extend(data)
    node.input.extend(dict.fromkeys(controls))
    names = self._names
    self._colocate(
        node, lambda mate: None if names.is_copy(mate) else names.once(mate, r), len(owners) > 1)
    return node

  def _input(self, op: int, r: int, text: str) -> Sequence[str]:
    """Returns the names that replace one input of an op of the step.

    Args:
      op: index of an op that is no copy.
      r: the replica, if the op is mirrored; else 0.
      text: the input in the original graph.

    Returns:
      Inputs of the new node; several for a control input that waits for all replicas.
    """
    if self._op_names[op] in self._flow.graph.origin.fully_fed_ops:
      return self._input_outside(frozenset(), 0, text)
    if text.startswith("^"):
      # A mirrored op waits for its own replica; an op that exists once waits for all replicas.
      awaited, own = text[1:], self._op_names[op] in self._mirrors
      as_read = self._names.in_replica if self._names.is_copy(awaited) else self._names.once
      return [f"^{as_read(awaited, q)}" for q in ((r,) if own else range(self._replicas))]
    name, port = parse(text)
    combined = self._collectives.read.get((self._flow.graph.op_index[name], port))
    return (combined[r] if combined else tensor_name(self._names.once(name, r), port),)

  def _outside(self, node: NodeDef, frames: Set[bytes]) -> None:
    """Writes an op outside the step, once for each replica that has the op."""
    handles = self._mirrors.outside.get(node.name, frozenset())
    if node.op in ("Mean", "Sum") and "gradients" not in node.name and self._names.is_copy(
        op_of(node.input[0])):
      self._of_first.append(node.name)
    for r in self._names.owners(node.name):
      own = self._no_copy(node, r, functools.partial(self._input_outside, handles, r))
      if r:
        self._rename(own, r, _NAMES_BEYOND)
      # Each replica has a frame of its own for a loop that it runs for itself.
      if "frame_name" in own.attr and own.attr["frame_name"].s in frames:
        self._rename(own, 0, ("frame_name",))  # into the first replica's loop

  def _input_outside(self, handles: FrozenSet[str], r: int, text: str) -> Sequence[str]:
    """Returns an input of an op outside the step: replica r's handle, or the first's tensor."""
    if text.startswith("^"):
      awaited = text[1:]
      if self._names.is_copy(awaited):
        return (f"^{self._names.in_replica(awaited, 0)}",)
      return [f"^{self._names.once(awaited, q)}" for q in self._names.owners(awaited)]
    name, port = parse(text)
    # Handles are the replica's own, all other inputs the first replica's.
    owner = r if text in handles else 0
    if self._names.is_copy(name):
      return (tensor_name(self._names.in_replica(name, owner), port),)
    return (tensor_name(self._names.once(name, owner), port),)

  def _keep_fetched_names(self) -> None:
    """Adds ops with the original names of fetched ops that exist only as copies."""
    # Op -> fetched ports.
    by_op: Dict[int, List[int]] = {}
    for op, port in sorted(self._plan.fetched):
      if self._names.is_copy(self._op_names[op]) and op not in self._divided:
        by_op.setdefault(op, []).append(port)
    for op, ports in sorted(by_op.items()):
      name = self._op_names[op]
      # For each port, the combined value, or the first replica's value.
      tensors = [
          self._collectives.read[op, port][0] if (op, port) in self._collectives.read else
          self._names.of_replica((op, port), 0) for port in range(max(ports) + 1)]
      # The fetch waits for the updates and other effects of all replicas.
      others = self._names.prefixes if self._mirrors.needed or op in self._plan.run else []
      kept = self._writer.new(
          name, "IdentityN", [*tensors, *(f"^{prefix}/{name}" for prefix in others)])
      kept.attr["T"].list.type.extend(
          self._flow.dtype((op, port)) % 100 for port in range(len(tensors)))
      self._writer.original_of[kept.name] = kept.name
    # Ops without a result: one NoOp waits for the copies.
    for op in self._plan.run:
      name = self._op_names[op]
      if self._names.is_copy(name) and op not in by_op:
        self._writer.new(name, "NoOp", [f"^{prefix}/{name}" for prefix in self._names.prefixes])
        self._writer.original_of[name] = name

  def _colocate(
      self, node: NodeDef, translate: Callable[[str], Optional[str]], repeated: bool) -> None:
    """Keeps colocation with ops that still exist.

    Args:
      node: changed in place.
      translate: returns the present name of an op, or None.
      repeated: whether other replicas have the same op.
    """

    def renamed(name: str) -> Optional[str]:
      # An op outside of the step that exists once would bind all replicas to its device.
      once = name not in self._flow.graph.op_index and name not in self._mirrors
      return None if repeated and once else translate(name)

    rename_colocated(node, renamed)
