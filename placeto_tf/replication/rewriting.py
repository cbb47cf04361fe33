"""Writes the replicas: a GraphDef with R copies of some ops, and ops that join them.

Op "a" of replica r is "replica_r/a". The op that joins the replicas' tensors "a:0" is "joined/a_0":
a sum and its scaling, a maximum, a concatenation of rows. Small sums are taken together,
"joined/pack_k", and large ones in pieces, "joined/pack_k/piece_i" (see `packing`). Feeds and
fetches keep their names: a feed takes the whole batch, of which "replica_r/x" is a part.

Ops that are no copies (variables, the optimizer) exist once under their own names. With mirrored
variables they are the first replica's, and those of replica r are "replica_r/a". A sum is taken
once for all replicas; each has rows, and what a pack is split into, of its own. A fetch, and a
write outside the step, waits for the other replicas' twins of it.

Legend: N needed ops, R replicas.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Optional, Sequence, Set, Tuple

import numpy as np

from placeto_tf.graphs.shapes import PLACEHOLDERS
from placeto_tf.replication import cuts, op_roles, powers
from placeto_tf.replication.cuts import Cut, Join
from placeto_tf.replication.dataflow import Dataflow, Tensor, known_dims
from placeto_tf.replication.kinds import Own
from placeto_tf.replication.mirroring import Mirrors
from placeto_tf.replication.nodes import NodeWriter, endpoint, tensor_name
from placeto_tf.replication.packing import Pack, find_packs
from placeto_tf.replication.propagation import Spread
from placeto_tf.replication.scaling import Scaling

_COLOCATED = b"loc:@"
_SEED_STEP = 0x5851F42D  # between the seeds of two replicas
# Attributes that name what an op shares with others of that name in a step, and beyond it.
_NAMES_IN_STEP = ("frame_name", "tensor_array_name", "stack_name")
_NAMES_BEYOND = ("shared_name",)


@dataclasses.dataclass(frozen=True, eq=False)
class Rewritten:
  """The replicated GraphDef.

  Attributes:
    graph_def: the nodes.
    replica_of: name of each op that belongs to a replica -> the replica.
    original_of: name of each op that copies an op of the source -> that op's name.
    divided: feeds that take the global batch, of which each replica has a part.
    own_joins: as in `ReplicatedGraph`.
    owned: names of variables that keep examples, of which each replica has its own.
  """

  graph_def: Any
  replica_of: Dict[str, int]
  original_of: Dict[str, str]
  divided: FrozenSet[str]
  own_joins: FrozenSet[str]
  owned: FrozenSet[str]


def rewrite(
    flow: Dataflow, spread: Spread, cut: Cut, mirrors: Mirrors, scaling: Scaling,
    fetched: Sequence[Tensor], run: Sequence[int], micro_batches: int = 1) -> Rewritten:
  """Writes the replicas; see `replicate`.

  Args:
    flow: the graph.
    spread: the ops that the batch reaches.
    cut: which ops are copied.
    mirrors: which others each replica has; empty if variables are shared.
    scaling: what grows with the batch, for R replicas.
    fetched: tensors that are fetched.
    run: ops that are fetched without a result.
    micro_batches: M consecutive replicas are a group, whose parts are added up first.
  """
  return _Writer(flow, spread, cut, mirrors, scaling, fetched, run, micro_batches).run()


class _Writer:

  def __init__(
      self, flow: Dataflow, spread: Spread, cut: Cut, mirrors: Mirrors, scaling: Scaling,
      fetched: Sequence[Tensor], run: Sequence[int], micro_batches: int):
    self._flow, self._spread, self._cut, self._mirrors = flow, spread, cut, mirrors
    self._scaling, self._replicas = scaling, scaling.replicas
    replicas, self._micro_batches = scaling.replicas, micro_batches
    self._fetched, self._run_ops = set(fetched), run
    source = flow.graph.origin.graph_def
    self._source = source
    self._writer = NodeWriter(type(source)())
    self._result.versions.CopyFrom(source.versions)
    self._result.library.CopyFrom(source.library)
    taken = {name.partition("/")[0] for name in (node.name for node in source.node)}
    self._prefixes = [_fresh(f"replica_{r}", taken) for r in range(replicas)]
    self._joined_prefix = _fresh("joined", taken)
    self._names = list(flow.graph.op_names)
    self._ends = {self._names[op] for op in (*run, *(op for op, _ in fetched))}
    # Of two, each takes the means itself: as many bytes as by halves, and one transfer less to wait
    # for. Of more, that would be more bytes.
    self._own_means = bool(mirrors.needed) and replicas == 2
    self._joined: Dict[Tensor, List[str]] = {}  # its joined value, as each replica reads it
    self._packed: Set[Tensor] = set()
    self._fixed: Dict[Tuple[str, powers.Fix], str] = {}  # (tensor, what is done to it) -> result
    self._split: Set[int] = set()  # fed ops whose feed is divided
    self._replica_of: Dict[str, int] = {}
    self._original_of: Dict[str, str] = {}

  @property
  def _result(self) -> Any:
    return self._writer.graph_def

  def run(self) -> Rewritten:
    flow, cut = self._flow, self._cut
    index = flow.graph.op_index
    frames = {flow.frames[op].encode() for op in cut.copies if self._own_frame(op)}
    by_op: Dict[int, List[Tensor]] = {}
    for tensor in sorted(cut.joined):
      by_op.setdefault(tensor[0], []).append(tensor)
      self._joined[tensor] = self._joined_names(tensor)
    sums = {tensor: [f"{name}/sum" for name in names] for tensor, names in self._joined.items()}
    # Written first, for they name what is joined; put last, behind what they read.
    whole, self._writer = self._writer, NodeWriter(type(self._source)())
    # A pack of micro-batches would have its first stage wait for the gradients of its last.
    packs = find_packs(
        flow, self._spread, cut, self._replicas, frozenset(self._fetched),
        in_pieces=bool(self._mirrors.needed) and not self._own_means) if (
            self._micro_batches == 1) else []
    for k, pack in enumerate(packs):
      sums.update(self._pack(k, pack))
    packed, self._writer = self._result, whole
    for node in self._source.node:
      op = index.get(node.name)
      if op is None:
        self._outside(node, frames)
        continue
      if op in cut.copies:
        for r in range(self._replicas):
          self._copy(op, r)
      if op in cut.shared or op not in self._spread.copied:
        for r in self._owners(node.name):
          own = self._no_copy(node, r, functools.partial(self._input, op, r))
          if r:
            self._rename(own, r, (*_NAMES_IN_STEP, *_NAMES_BEYOND))
      for tensor in by_op.get(op, ()):
        if tensor not in self._packed:
          self._join(tensor)
    self._result.node.extend(packed.node)
    self._keep_fetched_names()
    own, others = (
        {name for tensor, join in cut.joined.items() if join.how == "sum"
         and self._is_dispensable(tensor) == dispensable for name in sums[tensor]}
        for dispensable in (True, False))
    return Rewritten(
        self._result, self._replica_of, self._original_of,
        frozenset(f"{self._names[op]}:0" for op in self._split), frozenset(own - others),
        frozenset(self._names[op] for op in self._spread.owned))

  def _is_dispensable(self, tensor: Tensor) -> bool:
    """Whether each replica could do without the sum."""
    return tensor in self._fetched or isinstance(self._spread.kind(tensor), Own)

  # Names.

  def _owners(self, name: str) -> Sequence[int]:
    """The replicas that have an op which is no copy; 0 alone if there is one of it."""
    return range(self._replicas) if name in self._mirrors else (0,)

  def _name(self, name: str, r: int) -> str:
    """An op that is no copy, as replica r reads it."""
    if not r or name not in self._mirrors:
      return name
    copied = self._flow.graph.op_index.get(name) in self._cut.copies
    return f"{self._prefixes[r]}/" + (f"{self._joined_prefix}/{name}" if copied else name)

  def _in_replica(self, name: str, r: int) -> str:
    """An op as the copies of replica r read it."""
    op = self._flow.graph.op_index.get(name)
    return f"{self._prefixes[r]}/{name}" if op in self._cut.copies else self._name(name, r)

  def _is_copy(self, name: str) -> bool:
    """Whether the op exists as copies alone."""
    op = self._flow.graph.op_index.get(name)
    return op in self._cut.copies and op not in self._cut.shared

  def _for_each(self, name: str) -> List[str]:
    """The name of a joining op as each replica reads it, of which each has its own if mirrored."""
    return [f"{name}/{prefix}" if self._mirrors.needed else name for prefix in self._prefixes]

  @contextlib.contextmanager
  def _owned(self, r: Optional[int]) -> Iterator[None]:
    """Gives the ops that are written inside to replica r, if it is not None."""
    first = len(self._result.node)
    yield
    if r is not None:
      self._replica_of.update((node.name, r) for node in self._result.node[first:])

  def _each(self, names: Sequence[str]) -> Iterator[Tuple[int, str]]:
    """(replica, op to write) of what replicas have of their own, or (0, op) of a single one."""
    found = list(dict.fromkeys(names))
    for r, name in enumerate(found):
      with self._owned(r if len(found) > 1 else None):
        yield r, name

  # Copies.

  def _own_frame(self, op: int) -> bool:
    """Whether an op is in a loop that each replica runs for itself."""
    return bool(self._flow.frames[op]) and self._flow.frames[op] not in self._spread.merged

  def _copy(self, op: int, r: int) -> None:
    flow, name = self._flow, self._names[op]
    if op in self._spread.sources and flow.types[op] not in op_roles.PIPELINES:
      self._divide_feed(op, r)
      return
    node = self._add(flow.nodes[op], f"{self._prefixes[r]}/{name}", r, name)
    controls: List[str] = []
    data: List[str] = []
    for text in flow.nodes[op].input:
      if text.startswith("^"):
        controls.append(f"^{self._in_replica(text[1:], r)}")
      else:
        data.append(self._copy_input(op, len(data), text, r))
    if flow.types[op] in op_roles.PIPELINES and r:
      # Which examples go to which replica is the same in every run.
      controls.append(f"^{self._prefixes[r - 1]}/{name}")
    node.input.extend(data)
    node.input.extend(dict.fromkeys(controls))
    if op in self._spread.copied:
      self._colocate(node, lambda mate: self._in_replica(mate, r))
    elif "_class" in node.attr:  # a constant of its own is wherever the replica is
      del node.attr["_class"]
    names = [key for key in _NAMES_IN_STEP if key != "frame_name" or self._own_frame(op)]
    self._rename(node, r, names)
    if op in self._spread.owned and r:
      self._rename(node, r, _NAMES_BEYOND)
    if op in self._spread.slices:
      self._set_rows(node, op, r)
    if op in self._spread.noise and r:
      self._other_noise(op, node, r)

  def _set_rows(self, node: Any, op: int, r: int) -> None:
    """Gives replica r its rows of a constant."""
    import tensorflow as tf

    whole = self._spread.slices[op]
    axis = self._spread.kinds[op][0].axis  # type: ignore[union-attr]
    node.attr["value"].tensor.CopyFrom(
        tf.make_tensor_proto(np.split(whole, self._replicas, axis=axis)[r]))

  def _rename(self, node: Any, r: int, keys: Sequence[str]) -> None:
    """Gives a replica's op loops and resources of its own."""
    for key in keys:
      if key in node.attr and node.attr[key].s:
        node.attr[key].s = f"{self._prefixes[r]}/".encode() + node.attr[key].s

  def _copy_input(self, op: int, i: int, text: str, r: int) -> str:
    """What replica r's copy of an op reads."""
    name, port = endpoint(text)
    tensor = (self._flow.graph.op_index[name], port)
    fix = self._spread.fixes.get((op, i))
    if fix is None:
      return self._of_replica(tensor, r)
    if fix[0] == powers.JOIN:
      joined = self._joined.get(tensor)
      return joined[r] if joined else tensor_name(self._name(name, r), port)
    found = self._of_replica(tensor, r)
    anchor = found if self._flow.frames[op] or self._flow.types[op] == "Merge" else None
    dtype = self._flow.dtype(tensor) % 100
    made = f"{self._prefixes[r]}/{self._names[op]}/input_{i}"
    # Equal results are made once, but not for another loop or branch.
    key = (found, (*fix, r, self._flow.frames[op], bool(anchor)))
    if key not in self._fixed:
      with self._owned(r):
        if fix[0] == powers.SCALE:
          factor = self._replicas ** fix[1]
          self._fixed[key] = self._writer.scale(
              made, found, int(factor) if self._flow.is_integer(tensor) else factor, dtype, anchor)
        elif fix[0] == powers.SLICE:
          self._fixed[key] = self._writer.part(
              made, found, r, self._replicas, fix[1], dtype, anchor)
        else:
          self._fixed[key] = self._writer.offset(made, found, r, dtype, anchor)
    return self._fixed[key]

  def _divide_feed(self, op: int, r: int) -> None:
    """The global batch, cut in equal parts."""
    name, dtype = self._names[op], self._flow.dtype((op, 0)) % 100
    if not r:
      tensor = f"{name}:0"
      shape = self._flow.graph.origin.feed_shapes[tensor]
      node = self._add(self._flow.nodes[op], name, None, name)
      self._make_placeholder(op, node, (shape[0] * self._replicas, *shape[1:]))
      self._writer.part(
          f"{self._joined_prefix}/{name}/split", name, 0, self._replicas, 0, dtype)
      self._split.add(op)
    part = self._writer.new(
        f"{self._prefixes[r]}/{name}", "Identity",
        [tensor_name(f"{self._joined_prefix}/{name}/split", r)], T=dtype)
    self._replica_of[part.name], self._original_of[part.name] = r, name

  def _make_placeholder(self, op: int, node: Any, shape: Any) -> None:
    """Turns a fed op into a Placeholder; its batch stays unknown where it was."""
    from placeto_tf.graphs import shapes

    declared = shapes.declared_shape(node)
    dtype = self._flow.dtype((op, 0))
    if node.op in PLACEHOLDERS and (not declared or declared[0] == -1):
      return
    node.op = "Placeholder"
    node.attr.clear()
    node.attr["dtype"].type = dtype % 100
    shapes.set_shape(node.attr["shape"], shape)

  def _other_noise(self, op: int, node: Any, r: int) -> None:
    """Gives replica r its own draws, from the op's seed."""
    kind = self._flow.types[op]
    if kind in op_roles.STATEFUL_NOISE:
      if not op_roles.seeded(node):
        return  # draws of its own in any case
      node.attr["seed2"].i = (node.attr["seed2"].i + r * _SEED_STEP) % (1 << 31)
    elif kind in op_roles.SEEDED_NOISE:
      i = 0 if kind in op_roles.KEYS else 2 if kind == "StatelessMultinomial" else 1
      dtype = self._flow.dtype(self._flow.inputs[op][i])
      step = self._writer.constant(
          f"{node.name}/other_seed/step", (r * _SEED_STEP) % (1 << 31), dtype)
      seed = self._writer.new(f"{node.name}/other_seed", "AddV2", [node.input[i], step], T=dtype)
      node.input[i] = seed.name
      self._replica_of[step] = self._replica_of[seed.name] = r

  # Ops that are no copies: they exist once, or are mirrored.

  def _no_copy(self, original: Any, r: int, translate: Callable[[str], Sequence[str]]) -> Any:
    """The only one of an op, or replica r's."""
    name, owners = original.name, self._owners(original.name)
    node = self._add(original, self._name(name, r), r if len(owners) > 1 else None, name)
    if "_output_shapes" in node.attr:
      del node.attr["_output_shapes"]  # rows of all replicas are more
    inputs = [found for text in original.input for found in translate(text)]
    data = [text for text in inputs if not text.startswith("^")]
    controls = [text for text in inputs if text.startswith("^")]
    if not r and (name in self._ends or (
        name in self._mirrors.outside and op_roles.is_update(original.op))):
      controls += [f"^{self._name(name, other)}" for other in owners[1:]]
    node.input.extend(data)
    node.input.extend(dict.fromkeys(controls))
    self._colocate(node, lambda mate: None if self._is_copy(mate) else self._name(mate, r))
    return node

  def _input(self, op: int, r: int, text: str) -> Sequence[str]:
    """An input of an op of the step, of replica r if it is mirrored."""
    if self._names[op] in self._flow.graph.origin.cut_ops:
      return self._input_outside(frozenset(), 0, text)
    if text.startswith("^"):
      awaited, own = text[1:], self._names[op] in self._mirrors
      as_read = self._in_replica if self._is_copy(awaited) else self._name
      return [f"^{as_read(awaited, q)}" for q in ((r,) if own else range(self._replicas))]
    name, port = endpoint(text)
    joined = self._joined.get((self._flow.graph.op_index[name], port))
    return (joined[r] if joined else tensor_name(self._name(name, r), port),)

  def _outside(self, node: Any, frames: Set[bytes]) -> None:
    """An op that the fetches do not need, with its twins."""
    handles = self._mirrors.outside.get(node.name, frozenset())
    for r in self._owners(node.name):
      own = self._no_copy(node, r, functools.partial(self._input_outside, handles, r))
      if r:
        self._rename(own, r, _NAMES_BEYOND)
      if "frame_name" in own.attr and own.attr["frame_name"].s in frames:
        self._rename(own, 0, ("frame_name",))  # into the first replica's loop

  def _input_outside(self, handles: FrozenSet[str], r: int, text: str) -> Sequence[str]:
    """For ops that the fetches do not need: the first replica's values, replica r's handles."""
    if text.startswith("^"):
      awaited = text[1:]
      if self._is_copy(awaited):
        return (f"^{self._in_replica(awaited, 0)}",)
      return [f"^{self._name(awaited, q)}" for q in self._owners(awaited)]
    name, port = endpoint(text)
    owner = r if text in handles else 0
    if self._is_copy(name):
      return (tensor_name(self._in_replica(name, owner), port),)
    return (tensor_name(self._name(name, owner), port),)

  # Joining.

  def _joined_names(self, tensor: Tensor) -> List[str]:
    """The joined value of a tensor, as each replica reads it."""
    join = self._cut.joined[tensor]
    name = f"{self._joined_prefix}/{self._names[tensor[0]]}_{tensor[1]}"
    if join.how == cuts.FIRST:
      if self._factor(tensor, join) is None:
        return [self._of_replica(tensor, r if self._mirrors.needed else 0)
                for r in range(self._replicas)]
      return self._for_each(name)
    own = join.rows_of_gradient or (
        join.how == "sum" and self._own_means and tensor not in self._fetched)
    return self._for_each(name) if own else [name] * self._replicas

  def _of_replica(self, tensor: Tensor, r: int) -> str:
    op, port = tensor
    return tensor_name(self._in_replica(self._names[op], r), port)

  def _factor(self, tensor: Tensor, join: Join) -> Any:
    """By what a joined tensor is multiplied to be the global value, or None."""
    if join.how == cuts.FIRST and not join.power:
      factors = self._scaling.factors(tensor) if self._flow.is_integer(tensor) else None
      return None if factors is None or (factors == 1).all() else factors
    if not join.power:
      return None
    factor = self._replicas ** -join.power
    return int(factor) if self._flow.is_integer(tensor) else factor

  def _join(self, tensor: Tensor) -> None:
    join, names = self._cut.joined[tensor], self._joined[tensor]
    factor = self._factor(tensor, join)
    if join.how == cuts.FIRST and factor is None:
      return
    dtype = self._flow.dtype(tensor) % 100
    parts = [self._of_replica(tensor, r) for r in range(self._replicas)]
    anchor = parts[0] if self._flow.frames[tensor[0]] else None
    writer = self._writer
    for r, name in self._each(names):
      if join.how == cuts.FIRST:
        writer.scale(name, parts[r], factor, dtype, anchor)
      elif join.how == cuts.ROWS:
        if join.positions:
          parts = [writer.offset(f"{name}/part_{q}", part, q, dtype, anchor)
                   for q, part in enumerate(parts)]
        writer.concat(
            name if factor is None else f"{name}/rows", f"{name}/axis", parts, dtype, join.axis,
            anchor)
        if factor is not None:
          writer.scale(name, f"{name}/rows", factor, dtype, anchor)
      else:
        self._reduce(name, parts, dtype, join.how, factor, anchor)

  def _reduce(
      self, name: str, parts: Sequence[str], dtype: int, how: str, factor: Any,
      anchor: Optional[str] = None) -> str:
    """What the parts combine to; returns the op that combines them."""
    if how == "sum" and 1 < self._micro_batches < len(parts):
      parts = self._sums_of_groups(name, parts, dtype)
    total = self._writer.combine(f"{name}/sum", parts, dtype, how)
    if factor is None:
      self._writer.new(name, "Identity", [total], T=dtype)
    else:
      self._writer.scale(name, total, factor, dtype, anchor)
    return total

  def _sums_of_groups(self, name: str, parts: Sequence[str], dtype: int) -> List[str]:
    """What each group adds up by itself."""
    sums = []
    for first in range(0, len(parts), self._micro_batches):
      with self._owned(first):
        sums.append(self._writer.combine(
            f"{name}/{self._prefixes[first]}", parts[first:first + self._micro_batches], dtype,
            "sum"))
    return sums

  def _pack(self, k: int, pack: Pack) -> Dict[Tensor, List[str]]:
    """Writes the mean of a pack; returns the ops that sum each tensor."""
    name, tensors = f"{self._joined_prefix}/pack_{k}", pack.tensors
    dtype = self._flow.dtype(tensors[0]) % 100
    factor = self._factor(tensors[0], self._cut.joined[tensors[0]])
    shapes = [known_dims(self._flow.shape(tensor)) for tensor in tensors]
    sizes = [math.prod(shape) for shape in shapes]
    ends = np.arange(pack.pieces + 1) * sum(sizes) // pack.pieces
    parts = []  # [R][pieces]
    for r, prefix in enumerate(self._prefixes):
      with self._owned(r):
        flat = self._laid_out(f"{name}/{prefix}", tensors, shapes, r, dtype)
        parts.append(self._writer.cut_up(
            f"{name}/{prefix}/cut", flat, np.diff(ends).tolist(), dtype))
    means = [name if pack.pieces == 1 else f"{name}/piece_{i}" for i in range(pack.pieces)]
    # [R][pieces], or [1][pieces] for means that all replicas read.
    of_replicas = [[f"{mean}/{prefix}/mean" for mean in means] for prefix in self._prefixes] if (
        self._own_means) else [means]
    sums = []
    for r, each in enumerate(of_replicas):
      with self._owned(r if self._own_means else None):
        sums += [self._reduce(mean, piece, dtype, "sum", factor)
                 for mean, piece in zip(each, zip(*parts))]
    joined = [list(self._joined[tensor]) if self._own_means else self._for_each(
        self._joined[tensor][0]) for tensor in tensors]
    for r, own in self._each(self._for_each(f"{name}/split")):
      means = of_replicas[r % len(of_replicas)]
      mean = means[0]
      if len(means) > 1:
        mean = self._writer.concat(f"{own}/whole", f"{own}/whole/axis", means, dtype)
      for i, piece in enumerate(self._writer.cut_up(own, mean, sizes, dtype)):
        if len(shapes[i]) == 1:
          joined[i][r] = piece
        else:
          self._writer.reshape(joined[i][r], piece, shapes[i], dtype)
    for tensor, names in zip(tensors, joined):
      # One split serves all replicas unless each has its own.
      self._joined[tensor] = names if self._mirrors.needed else [names[0]] * self._replicas
    self._packed.update(tensors)
    return dict.fromkeys(tensors, sums)

  def _laid_out(
      self, name: str, tensors: Sequence[Tensor], shapes: Sequence[Sequence[int]], r: int,
      dtype: int) -> str:
    """Replica r's tensors, laid end to end."""
    flat = []
    for i, (tensor, shape) in enumerate(zip(tensors, shapes)):
      text = self._of_replica(tensor, r)
      if len(shape) != 1:
        text = self._writer.reshape(f"{name}/flat_{i}", text, [math.prod(shape)], dtype)
      flat.append(text)
    return flat[0] if len(flat) == 1 else self._writer.concat(name, f"{name}/axis", flat, dtype)

  def _keep_fetched_names(self) -> None:
    """Restores the names of fetched ops that have become several."""
    by_op: Dict[int, List[int]] = {}
    for op, port in self._fetched:
      if op in self._cut.copies and op not in self._cut.shared and op not in self._split:
        by_op.setdefault(op, []).append(port)
    for op, ports in sorted(by_op.items()):
      name = self._names[op]
      tensors = [
          self._joined[op, port][0] if (op, port) in self._joined else
          self._of_replica((op, port), 0) for port in range(max(ports) + 1)]
      # What the fetch waits for changes all replicas' variables.
      others = [f"^{prefix}/{name}" for prefix in self._prefixes] if self._mirrors.needed else []
      kept = self._writer.new(name, "IdentityN", [*tensors, *others])
      kept.attr["T"].list.type.extend(
          self._flow.dtype((op, port)) % 100 for port in range(len(tensors)))
      self._original_of[kept.name] = kept.name
    for op in self._run_ops:
      if op in self._cut.copies and op not in self._cut.shared and op not in by_op:
        name = self._names[op]
        self._writer.new(name, "NoOp", [f"^{prefix}/{name}" for prefix in self._prefixes])
        self._original_of[name] = name

  # Nodes.

  def _add(self, original: Any, name: str, replica: Any, original_name: str) -> Any:
    node = self._result.node.add()
    node.CopyFrom(original)
    del node.input[:]
    node.name = name
    if replica is not None:
      self._replica_of[name] = replica
    self._original_of[name] = original_name
    return node

  def _colocate(self, node: Any, translate: Any) -> None:
    """Keeps colocation with ops that still exist."""
    if "_class" not in node.attr:
      return
    classes = list(node.attr["_class"].list.s)
    kept = []
    for value in classes:
      mate = translate(value[len(_COLOCATED):].decode("utf-8", "replace"))
      if mate is not None:
        kept.append(_COLOCATED + mate.encode())
    del node.attr["_class"]
    if kept:
      node.attr["_class"].list.s.extend(kept)


def _fresh(name: str, taken: Any) -> str:
  found, count = name, 0
  while found in taken:
    count += 1
    found = f"{name}_{count}"
  taken.add(found)
  return found


