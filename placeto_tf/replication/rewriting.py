"""Writes the replicas: a GraphDef with R copies of some ops, and ops that join them.

Op "a" of replica r is "replica_r/a". The op that joins the replicas' tensors "a:0" is "joined/a_0":
a sum and its scaling for a mean, a concatenation for rows. Small means are taken together,
"joined/pack_k" (see `packing`). Fetches keep their names.

Legend: N needed ops, R replicas.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, FrozenSet, List, Sequence, Set, Tuple

import numpy as np

from placeto_tf.graphs.shapes import PLACEHOLDERS
from placeto_tf.replication import cuts, op_roles
from placeto_tf.replication.cuts import Cut
from placeto_tf.replication.dataflow import Dataflow, Tensor, known_dims
from placeto_tf.replication.packing import find_packs
from placeto_tf.replication.propagation import Spread

_COLOCATED = b"loc:@"
_SEED_STEP = 0x5851F42D  # between the seeds of two replicas
_INT32, _INT64 = 3, 9


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
    flow: Dataflow, spread: Spread, cut: Cut, replicas: int, split_feeds: bool,
    fetched: Sequence[Tensor], run: Sequence[int]) -> Rewritten:
  """Writes the replicas; see `replicate`.

  Args:
    flow: the graph.
    spread: the ops that the batch reaches.
    cut: which ops are copied.
    replicas: R.
    split_feeds: whether a feed takes the global batch, which the graph cuts.
    fetched: tensors that are fetched.
    run: ops that are fetched without a result.
  """
  return _Writer(flow, spread, cut, replicas, split_feeds, fetched, run).run()


class _Writer:

  def __init__(
      self, flow: Dataflow, spread: Spread, cut: Cut, replicas: int, split_feeds: bool,
      fetched: Sequence[Tensor], run: Sequence[int]):
    self._flow, self._spread, self._cut = flow, spread, cut
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
    self._joined: Dict[Tensor, str] = {}
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
    for tensor in cut.joined:
      by_op.setdefault(tensor[0], []).append(tensor)
      self._joined[tensor] = ""
    for tensor in sorted(cut.joined):
      self._joined[tensor] = self._joined_name(tensor)
    sums = {tensor: f"{name}/sum" for tensor, name in self._joined.items()}
    # Written first, for they name what is joined; put last, behind what they read.
    whole, self._result = self._result, type(self._result)()
    packs = find_packs(flow, self._spread, cut, self._replicas, frozenset(self._fetched))
    for k, pack in enumerate(packs):
      sums.update(self._pack(k, pack))
    packed, self._result = self._result, whole
    for node in self._source.node:
      op = index.get(node.name)
      if op is None:
        self._rename_frame(self._shared(node, self._unneeded_input), frames)
        continue
      if op in cut.copies:
        for r in range(self._replicas):
          self._copy(op, r)
      if op in cut.shared or op not in self._spread.copied:
        self._shared(node, lambda text, op=op: self._shared_input(op, text))
      for tensor in sorted(by_op.get(op, ())):
        if tensor not in self._packed:
          self._join(tensor)
    self._result.node.extend(packed.node)
    self._keep_fetched_names()
    for name in flow.graph.origin.feed_shapes:
      if name not in self._feeds:
        self._feeds[name] = (name,)
    own = frozenset(
        sums[tensor] for tensor, how in cut.joined.items()
        if how == cuts.MEANS and (tensor in self._fetched or tensor[0] in self._spread.own))
    return Rewritten(self._result, self._replica_of, self._original_of, self._feeds, own)

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
        controls.append(self._copy_control(text[1:], r))
      else:
        node.input.append(self._copy_input(text, r))
    if flow.types[op] in op_roles.PIPELINES and r:
      # Which examples go to which replica is the same in every run.
      controls.append(f"^{self._prefixes[r - 1]}/{name}")
    node.input.extend(dict.fromkeys(controls))
    if op in self._spread.copied:
      self._colocate(node, lambda mate: self._name_in_replica(mate, r))
    elif "_class" in node.attr:  # a constant of its own is wherever the replica is
      del node.attr["_class"]
    if "frame_name" in node.attr:
      node.attr["frame_name"].s = f"{self._prefixes[r]}/".encode() + node.attr["frame_name"].s
    if op in self._spread.noise and r:
      self._other_noise(op, node, r)
    for key in ("tensor_array_name", "stack_name"):
      if key in node.attr and node.attr[key].s:
        node.attr[key].s = f"{self._prefixes[r]}/".encode() + node.attr[key].s

  def _copy_input(self, text: str, r: int) -> str:
    name, port = _endpoint(text)
    op = self._flow.graph.op_index[name]
    if op in self._split:
      return f"{self._split[op]}:{r}"
    if op in self._cut.copies:
      return _tensor_name(f"{self._prefixes[r]}/{name}", port)
    return text

  def _copy_control(self, name: str, r: int) -> str:
    op = self._flow.graph.op_index[name]
    if op in self._split:
      return f"^{self._split[op]}"
    return f"^{self._prefixes[r]}/{name}" if op in self._cut.copies else f"^{name}"

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

  # Ops that exist once.

  def _rename_frame(self, node: Any, frames: Set[bytes]) -> None:
    """Puts an op that the fetches do not need into the first replica's loop."""
    if "frame_name" in node.attr and node.attr["frame_name"].s in frames:
      node.attr["frame_name"].s = f"{self._prefixes[0]}/".encode() + node.attr["frame_name"].s

  def _shared(self, original: Any, translate: Any) -> Any:
    node = self._add(original, original.name, None, original.name)
    if "_output_shapes" in node.attr:
      del node.attr["_output_shapes"]  # rows of all replicas are more
    data: List[str] = []
    controls: List[str] = []
    for text in original.input:
      for found in translate(text):
        (controls if found.startswith("^") else data).append(found)
    node.input.extend(data)
    node.input.extend(dict.fromkeys(controls))
    self._colocate(node, self._name_once)
    return node

  def _shared_input(self, op: int, text: str) -> Sequence[str]:
    index = self._flow.graph.op_index
    if self._names[op] in self._flow.graph.origin.cut_ops:
      return (self._unneeded_input(text))
    if text.startswith("^"):
      awaited = index[text[1:]]
      if awaited in self._split:
        return (f"^{self._split[awaited]}",)
      if awaited in self._cut.shared or awaited not in self._cut.copies:
        return (text,)
      return [f"^{prefix}/{text[1:]}" for prefix in self._prefixes]
    name, port = _endpoint(text)
    return (self._joined.get((index[name], port), text),)

  def _unneeded_input(self, text: str) -> Sequence[str]:
    """For ops that the fetches do not need: where there are several, the first replica's."""
    control = "^" if text.startswith("^") else ""
    name, port = _endpoint(text[len(control):])
    op = self._flow.graph.op_index.get(name)
    if op is None or op not in self._cut.copies or op in self._cut.shared:
      return (text,)
    if op in self._split:
      return (f"^{self._split[op]}" if control else f"{self._split[op]}:0",)
    copy = f"{self._prefixes[0]}/{name}"
    return (f"^{copy}" if control else _tensor_name(copy, port),)

  # Joining.

  def _joined_name(self, tensor: Tensor) -> str:
    op, port = tensor
    how = self._cut.joined[tensor]
    if how == cuts.FIRST:
      return self._of_replica(tensor, 0)
    return f"{self._joined_prefix}/{self._names[op]}_{port}"

  def _of_replica(self, tensor: Tensor, r: int) -> str:
    op, port = tensor
    return self._copy_input(_tensor_name(self._names[op], port), r)

  def _join(self, tensor: Tensor) -> None:
    how, name = self._cut.joined[tensor], self._joined[tensor]
    if how == cuts.FIRST:
      return
    dtype = self._flow.dtype(tensor) % 100
    parts = [self._of_replica(tensor, r) for r in range(self._replicas)]
    if how == cuts.MEANS:
      total = self._new(f"{name}/sum", "AddN", parts)
      total.attr["N"].i, total.attr["T"].type = self._replicas, dtype
      self._scale(name, total.name, dtype)
      return
    whole = how == cuts.EXAMPLES or self._flow.is_integer(tensor)
    axis = self._constant(f"{name}/axis", 0)
    rows = self._new(name if whole else f"{name}/rows", "ConcatV2", [*parts, axis])
    rows.attr["N"].i = self._replicas
    rows.attr["T"].type, rows.attr["Tidx"].type = dtype, _INT32
    if not whole:
      self._scale(name, rows.name, dtype)

  def _pack(self, k: int, pack: Sequence[Tensor]) -> Dict[Tensor, str]:
    """One mean of several tensors laid end to end; returns the op that sums each."""
    name = f"{self._joined_prefix}/pack_{k}"
    dtype = self._flow.dtype(pack[0]) % 100
    shapes = [known_dims(self._flow.shape(tensor)) for tensor in pack]
    parts = [self._packed_part(name, pack, shapes, r, dtype) for r in range(self._replicas)]
    total = self._new(f"{name}/sum", "AddN", parts)
    total.attr["N"].i, total.attr["T"].type = self._replicas, dtype
    self._scale(name, total.name, dtype)
    sizes = self._constant(f"{name}/sizes", [math.prod(shape) for shape in shapes], _INT64)
    axis = self._constant(f"{name}/axis", 0)
    split = self._new(f"{name}/split", "SplitV", [name, sizes, axis])
    split.attr["num_split"].i = len(pack)
    split.attr["T"].type, split.attr["Tlen"].type = dtype, _INT64
    for i, (tensor, shape) in enumerate(zip(pack, shapes)):
      piece = _tensor_name(split.name, i)
      if len(shape) == 1:
        self._joined[tensor] = piece
      else:
        self._reshape(self._joined[tensor], piece, shape, dtype)
    self._packed.update(pack)
    return {tensor: total.name for tensor in pack}

  def _packed_part(
      self, name: str, pack: Sequence[Tensor], shapes: Sequence[Sequence[int]], r: int, dtype: int
  ) -> str:
    """Replica r's tensors of a pack, laid end to end."""
    first = len(self._result.node)
    part = f"{name}/{self._prefixes[r]}"
    flat = []
    for i, (tensor, shape) in enumerate(zip(pack, shapes)):
      text = self._of_replica(tensor, r)
      if len(shape) != 1:
        text = self._reshape(f"{part}/flat_{i}", text, [math.prod(shape)], dtype)
      flat.append(text)
    axis = self._constant(f"{part}/axis", 0)
    rows = self._new(part, "ConcatV2", [*flat, axis])
    rows.attr["N"].i = len(flat)
    rows.attr["T"].type, rows.attr["Tidx"].type = dtype, _INT32
    for node in self._result.node[first:]:
      self._replica_of[node.name] = r
    return part

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
      tensors = [
          self._joined.get((op, port)) or self._of_replica((op, port), 0)
          for port in range(max(ports) + 1)]
      kept = self._new(self._names[op], "IdentityN", tensors)
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

  def _name_in_replica(self, mate: str, r: int) -> Any:
    op = self._flow.graph.op_index.get(mate)
    if op is None or op in self._split or op not in self._cut.copies:
      return mate
    return f"{self._prefixes[r]}/{mate}"

  def _name_once(self, mate: str) -> Any:
    op = self._flow.graph.op_index.get(mate)
    if op is None or op in self._split or op in self._cut.shared or op not in self._cut.copies:
      return mate
    return None


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


