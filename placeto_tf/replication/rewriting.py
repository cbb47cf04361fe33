"""Writes the replicas: a GraphDef with R copies of some ops, and ops that join them.

Op "a" of replica r is "replica_r/a". The op that joins the replicas' tensors "a:0" is "joined/a_0":
a sum and its scaling for a mean, a concatenation for rows. Small means are taken together,
"joined/pack_k", and large ones in pieces, "joined/pack_k/piece_i" (see `packing`). Fetches keep
their names.

Ops that are no copies (variables, the optimizer) exist once under their own names. With mirrored
variables they are the first replica's, and those of replica r are "replica_r/a". A mean is taken
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
from placeto_tf.replication import cuts, op_roles
from placeto_tf.replication.cuts import Cut
from placeto_tf.replication.dataflow import Dataflow, Tensor, closure, known_dims
from placeto_tf.replication.mirroring import Mirrors
from placeto_tf.replication.packing import Pack, find_packs
from placeto_tf.replication.propagation import Spread

_COLOCATED = b"loc:@"
_SEED_STEP = 0x5851F42D  # between the seeds of two replicas
_INT32, _INT64 = 3, 9
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
    feeds: original feed -> the tensors that are fed now, one for each replica, or a single one if
      the graph splits the global batch.
    own_joins: as in `ReplicatedGraph`.
  """

  graph_def: Any
  replica_of: Dict[str, int]
  original_of: Dict[str, str]
  feeds: Dict[str, Tuple[str, ...]]
  own_joins: FrozenSet[str]


def rewrite(
    flow: Dataflow, spread: Spread, cut: Cut, mirrors: Mirrors, replicas: int, split_feeds: bool,
    fetched: Sequence[Tensor], run: Sequence[int]) -> Rewritten:
  """Writes the replicas; see `replicate`.

  Args:
    flow: the graph.
    spread: the ops that the batch reaches.
    cut: which ops are copied.
    mirrors: which others each replica has; empty if variables are shared.
    replicas: R.
    split_feeds: whether a feed takes the global batch, which the graph cuts.
    fetched: tensors that are fetched.
    run: ops that are fetched without a result.
  """
  return _Writer(flow, spread, cut, mirrors, replicas, split_feeds, fetched, run).run()


class _Writer:

  def __init__(
      self, flow: Dataflow, spread: Spread, cut: Cut, mirrors: Mirrors, replicas: int,
      split_feeds: bool, fetched: Sequence[Tensor], run: Sequence[int]):
    self._flow, self._spread, self._cut, self._mirrors = flow, spread, cut, mirrors
    self._replicas, self._split_feeds = replicas, split_feeds
    self._fetched, self._run_ops = set(fetched), run
    source = flow.graph.origin.graph_def
    self._source = source
    self._result = type(source)()
    self._result.versions.CopyFrom(source.versions)
    self._result.library.CopyFrom(source.library)
    taken = {name.partition("/")[0] for name in (node.name for node in source.node)}
    self._prefixes = [_fresh(f"replica_{r}", taken) for r in range(replicas)]
    self._joined_prefix = _fresh("joined", taken)
    self._names = list(flow.graph.op_names)
    self._ends = {self._names[op] for op in (*run, *(op for op, _ in fetched))}
    # What draws decide is not the same in all replicas, though it does not depend on the batch.
    self._drawn = closure(set(spread.noise), flow.consumers) if mirrors.needed else set()
    # Of two, each takes the means itself: as many bytes as by halves, and one transfer less to wait
    # for. Of more, that would be more bytes.
    self._own_means = bool(mirrors.needed) and replicas == 2
    self._joined: Dict[Tensor, List[str]] = {}  # its joined value, as each replica reads it
    self._packed: Set[Tensor] = set()
    self._split: Dict[int, str] = {}  # fed op -> the op that splits its feed
    self._replica_of: Dict[str, int] = {}
    self._original_of: Dict[str, str] = {}
    self._feeds: Dict[str, Tuple[str, ...]] = {}

  def run(self) -> Rewritten:
    flow, cut = self._flow, self._cut
    index = flow.graph.op_index
    frames = {flow.frames[op].encode() for op in cut.copies if flow.frames[op]}
    by_op: Dict[int, List[Tensor]] = {}
    for tensor in sorted(cut.joined):
      by_op.setdefault(tensor[0], []).append(tensor)
      self._joined[tensor] = self._joined_names(tensor)
    sums = {tensor: [f"{name}/sum" for name in names] for tensor, names in self._joined.items()}
    # Written first, for they name what is joined; put last, behind what they read.
    whole, self._result = self._result, type(self._result)()
    packs = find_packs(
        flow, self._spread, cut, self._replicas, frozenset(self._fetched),
        in_pieces=bool(self._mirrors.needed) and not self._own_means)
    for k, pack in enumerate(packs):
      sums.update(self._pack(k, pack))
    packed, self._result = self._result, whole
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
    for name in flow.graph.origin.feed_shapes:
      if name not in self._feeds:
        self._feeds[name] = (name,)
    own_joins = frozenset(
        name for tensor, how in cut.joined.items()
        if how == cuts.MEANS and (tensor in self._fetched or tensor[0] in self._spread.own)
        for name in sums[tensor])
    return Rewritten(
        self._result, self._replica_of, self._original_of, self._feeds, own_joins)

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
    if op in self._split:
      return self._split[op]
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

  def _copy(self, op: int, r: int) -> None:
    flow, name = self._flow, self._names[op]
    fed = op in self._spread.sources and flow.types[op] not in op_roles.PIPELINES
    if fed and self._split_feeds:
      self._split_feed(op, r)
      return
    node = self._add(flow.nodes[op], f"{self._prefixes[r]}/{name}", r, name)
    if fed:
      self._make_placeholder(op, node)
      self._feeds.setdefault(f"{name}:0", ())
      self._feeds[f"{name}:0"] += (f"{node.name}:0",)
      return
    controls = []
    for text in flow.nodes[op].input:
      if text.startswith("^"):
        controls.append(f"^{self._in_replica(text[1:], r)}")
      else:
        node.input.append(self._copy_input(text, r))
    if flow.types[op] in op_roles.PIPELINES and r:
      # Which examples go to which replica is the same in every run.
      controls.append(f"^{self._prefixes[r - 1]}/{name}")
    node.input.extend(dict.fromkeys(controls))
    if op in self._spread.copied:
      self._colocate(node, lambda mate: self._mate(mate, r))
    elif "_class" in node.attr:  # a constant of its own is wherever the replica is
      del node.attr["_class"]
    self._rename(node, r, _NAMES_IN_STEP)
    if op in self._spread.noise and r:
      self._other_noise(op, node, r)

  def _rename(self, node: Any, r: int, keys: Sequence[str]) -> None:
    """Gives a replica's op loops and resources of its own."""
    for key in keys:
      if key in node.attr and node.attr[key].s:
        node.attr[key].s = f"{self._prefixes[r]}/".encode() + node.attr[key].s

  def _copy_input(self, text: str, r: int) -> str:
    name, port = _endpoint(text)
    split = self._flow.graph.op_index[name] in self._split
    return _tensor_name(self._in_replica(name, r), r if split else port)

  def _split_feed(self, op: int, r: int) -> None:
    """The global batch, cut in equal parts."""
    name = self._names[op]
    if r:
      return
    tensor = f"{name}:0"
    shape = self._flow.graph.origin.feed_shapes[tensor]
    node = self._add(self._flow.nodes[op], name, None, name)
    self._make_placeholder(op, node, (shape[0] * self._replicas, *shape[1:]))
    self._feeds[tensor] = (tensor,)
    dtype = node.attr["dtype"].type
    axis = self._constant(f"{self._joined_prefix}/{name}/axis", 0)
    split = self._new(f"{self._joined_prefix}/{name}/split", "Split", [axis, name])
    split.attr["T"].type = dtype
    split.attr["num_split"].i = self._replicas
    self._split[op] = split.name

  def _make_placeholder(self, op: int, node: Any, shape: Any = None) -> None:
    """Turns a fed op into a Placeholder; its batch stays unknown where it was."""
    from placeto_tf.graphs import shapes

    declared = shapes.declared_shape(node)
    dtype = self._flow.dtype((op, 0))
    if node.op in PLACEHOLDERS and (shape is None or not declared or declared[0] == -1):
      return
    if shape is None:
      shape = self._flow.graph.origin.feed_shapes[f"{self._names[op]}:0"]
    node.op = "Placeholder"
    node.attr.clear()
    node.attr["dtype"].type = dtype % 100
    shapes.set_shape(node.attr["shape"], shape)

  def _other_noise(self, op: int, node: Any, r: int) -> None:
    """Gives replica r its own draws, from the op's seed."""
    kind = self._flow.types[op]
    if kind in op_roles.STATEFUL_NOISE:
      node.attr["seed2"].i = (node.attr["seed2"].i + r * _SEED_STEP) % (1 << 31)
    elif kind in op_roles.SEEDED_NOISE:
      i = 1 if kind in ("StatelessRandomUniform", "StatelessRandomNormal",
                        "StatelessTruncatedNormal", "StatelessRandomUniformInt",
                        "StatelessRandomBinomial") else 0
      if kind == "StatelessMultinomial":
        i = 2
      dtype = self._flow.dtype(self._flow.inputs[op][i])
      step = self._constant(f"{node.name}/other_seed/step", (r * _SEED_STEP) % (1 << 31), dtype)
      seed = self._new(f"{node.name}/other_seed", "AddV2", [node.input[i], step])
      seed.attr["T"].type = dtype
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
    self._colocate(node, lambda mate: None if self._is_copy(mate) and (
        self._flow.graph.op_index[mate] not in self._split) else self._name(mate, r))
    return node

  def _input(self, op: int, r: int, text: str) -> Sequence[str]:
    """An input of an op of the step, of replica r if it is mirrored."""
    if self._names[op] in self._flow.graph.origin.cut_ops:
      return self._input_outside(frozenset(), 0, text)
    if text.startswith("^"):
      awaited, own = text[1:], self._names[op] in self._mirrors
      as_read = self._in_replica if self._is_copy(awaited) else self._name
      return [f"^{as_read(awaited, q)}" for q in ((r,) if own else range(self._replicas))]
    name, port = _endpoint(text)
    joined = self._joined.get((self._flow.graph.op_index[name], port))
    return (joined[r] if joined else _tensor_name(self._name(name, r), port),)

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
    name, port = _endpoint(text)
    if self._is_copy(name):
      return (self._copy_input(text, 0),)
    return (_tensor_name(self._name(name, r if text in handles else 0), port),)

  # Joining.

  def _joined_names(self, tensor: Tensor) -> List[str]:
    """The joined value of a tensor, as each replica reads it."""
    op, how = tensor[0], self._cut.joined[tensor]
    if how == cuts.FIRST:
      own = self._mirrors.needed and op not in self._drawn
      return [self._of_replica(tensor, r if own else 0) for r in range(self._replicas)]
    name = f"{self._joined_prefix}/{self._names[op]}_{tensor[1]}"
    own = how == cuts.SPARSE_ROWS or (
        how == cuts.MEANS and self._own_means and tensor not in self._fetched)
    return self._for_each(name) if own else [name] * self._replicas

  def _of_replica(self, tensor: Tensor, r: int) -> str:
    op, port = tensor
    return self._copy_input(_tensor_name(self._names[op], port), r)

  def _join(self, tensor: Tensor) -> None:
    how, names = self._cut.joined[tensor], self._joined[tensor]
    if how == cuts.FIRST:
      return
    dtype = self._flow.dtype(tensor) % 100
    parts = [self._of_replica(tensor, r) for r in range(self._replicas)]
    if how == cuts.MEANS:
      for _, name in self._each(names):
        self._mean(name, parts, dtype)
      return
    whole = how == cuts.EXAMPLES or self._flow.is_integer(tensor)
    for _, name in self._each(names):
      rows = self._concat(name if whole else f"{name}/rows", f"{name}/axis", parts, dtype)
      if not whole:
        self._scale(name, rows, dtype)

  def _pack(self, k: int, pack: Pack) -> Dict[Tensor, List[str]]:
    """Writes the mean of a pack; returns the ops that sum each tensor."""
    name, tensors = f"{self._joined_prefix}/pack_{k}", pack.tensors
    dtype = self._flow.dtype(tensors[0]) % 100
    shapes = [known_dims(self._flow.shape(tensor)) for tensor in tensors]
    sizes = [math.prod(shape) for shape in shapes]
    ends = np.arange(pack.pieces + 1) * sum(sizes) // pack.pieces
    parts = []  # [R][pieces]
    for r, prefix in enumerate(self._prefixes):
      with self._owned(r):
        flat = self._laid_out(f"{name}/{prefix}", tensors, shapes, r, dtype)
        parts.append(self._cut_up(f"{name}/{prefix}/cut", flat, np.diff(ends).tolist(), dtype))
    means = [name if pack.pieces == 1 else f"{name}/piece_{i}" for i in range(pack.pieces)]
    # [R][pieces], or [1][pieces] for means that all replicas read.
    of_replicas = [[f"{mean}/{prefix}/mean" for mean in means] for prefix in self._prefixes] if (
        self._own_means) else [means]
    sums = []
    for r, each in enumerate(of_replicas):
      with self._owned(r if self._own_means else None):
        sums += [self._mean(mean, piece, dtype) for mean, piece in zip(each, zip(*parts))]
    joined = [list(self._joined[tensor]) if self._own_means else self._for_each(
        self._joined[tensor][0]) for tensor in tensors]
    for r, own in self._each(self._for_each(f"{name}/split")):
      means = of_replicas[r % len(of_replicas)]
      mean = means[0]
      if len(means) > 1:
        mean = self._concat(f"{own}/whole", f"{own}/whole/axis", means, dtype)
      for i, piece in enumerate(self._cut_up(own, mean, sizes, dtype)):
        if len(shapes[i]) == 1:
          joined[i][r] = piece
        else:
          self._reshape(joined[i][r], piece, shapes[i], dtype)
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
        text = self._reshape(f"{name}/flat_{i}", text, [math.prod(shape)], dtype)
      flat.append(text)
    return flat[0] if len(flat) == 1 else self._concat(name, f"{name}/axis", flat, dtype)

  def _cut_up(self, name: str, tensor: str, sizes: Sequence[int], dtype: int) -> List[str]:
    """A tensor of one dimension in stretches of these sizes."""
    if len(sizes) == 1:
      return [tensor]
    inputs = [tensor, self._constant(f"{name}/sizes", list(sizes), _INT64),
              self._constant(f"{name}/axis", 0)]
    split = self._new(name, "SplitV", inputs)
    split.attr["num_split"].i = len(sizes)
    split.attr["T"].type, split.attr["Tlen"].type = dtype, _INT64
    return [_tensor_name(name, i) for i in range(len(sizes))]

  def _concat(self, name: str, axis: str, parts: Sequence[str], dtype: int) -> str:
    node = self._new(name, "ConcatV2", [*parts, self._constant(axis, 0)])
    node.attr["N"].i = len(parts)
    node.attr["T"].type, node.attr["Tidx"].type = dtype, _INT32
    return name

  def _mean(self, name: str, parts: Sequence[str], dtype: int) -> str:
    """The mean of the parts; returns the op that sums them."""
    total = self._new(f"{name}/sum", "AddN", parts)
    total.attr["N"].i, total.attr["T"].type = len(parts), dtype
    self._scale(name, total.name, dtype)
    return total.name

  def _reshape(self, name: str, tensor: str, shape: Sequence[int], dtype: int) -> str:
    wanted = self._constant(f"{name}/shape", list(shape))
    node = self._new(name, "Reshape", [tensor, wanted])
    node.attr["T"].type, node.attr["Tshape"].type = dtype, _INT32
    return name

  def _scale(self, name: str, tensor: str, dtype: int) -> None:
    factor = self._constant(f"{name}/scale", 1 / self._replicas, dtype)
    scaled = self._new(name, "Mul", [tensor, factor])
    scaled.attr["T"].type = dtype

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
      kept = self._new(name, "IdentityN", [*tensors, *others])
      kept.attr["T"].list.type.extend(
          self._flow.dtype((op, port)) % 100 for port in range(len(tensors)))
      self._original_of[kept.name] = kept.name
    for op in self._run_ops:
      if op in self._cut.copies and op not in self._cut.shared and op not in by_op:
        name = self._names[op]
        self._new(name, "NoOp", [f"^{prefix}/{name}" for prefix in self._prefixes])
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

  def _new(self, name: str, op: str, inputs: Sequence[str]) -> Any:
    return self._result.node.add(name=name, op=op, input=inputs)

  def _constant(self, name: str, value: Any, dtype: int = _INT32) -> str:
    import tensorflow as tf

    node = self._new(name, "Const", ())
    node.attr["dtype"].type = dtype
    node.attr["value"].tensor.CopyFrom(
        tf.make_tensor_proto(value, dtype=tf.dtypes.as_dtype(dtype), shape=np.shape(value)))
    return name

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

  def _mate(self, mate: str, r: int) -> str:
    """What a copy of replica r is colocated with."""
    return mate if self._flow.graph.op_index.get(mate) in self._split else (
        self._in_replica(mate, r))


def _endpoint(text: str) -> Tuple[str, int]:
  name, colon, port = text.rpartition(":")
  return (name, int(port)) if colon and port.isdecimal() else (text, 0)


def _tensor_name(name: str, port: int) -> str:
  return f"{name}:{port}" if port else name


def _fresh(name: str, taken: Any) -> str:
  found, count = name, 0
  while found in taken:
    count += 1
    found = f"{name}_{count}"
  taken.add(found)
  return found


