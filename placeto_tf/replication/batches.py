"""Makes any number of replicas of one graph, and divides its batch.

If the batch is free, the global batch keeps its size and is divided among the replicas: a graph of
the zoo is built with the smaller batch, and a graph whose feeds have an unknown first dimension is
read with the smaller batch. If the batch is baked into shapes, the shapes are rewritten for the
smaller batch, and so is the number of examples that a step takes from a queue. Where shapes cannot
be rewritten, and with iterators, the unchanged graph becomes one replica, and the global batch
grows.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, Mapping, Optional, Tuple

from placeto_tf import zoo
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.shapes import divided
from placeto_tf.graphs.variable_parts import Part
from placeto_tf.replication.mirroring import host_variables
from placeto_tf.replication.op_roles import PIPELINES
from placeto_tf.replication.rebatching import divided_graph
from placeto_tf.replication.reloading import at_batch, unknown_batch
from placeto_tf.replication.replicated_graph import ReplicatedGraph
from placeto_tf.replication.replicating import REPLICA, check_replicas, replicate
from placeto_tf.replication.slicing import of_other, sliced

_ZOO = ("zoo:", "family:")
_REPLICAS = ":replicas="


class ReplicaSource:
  """Makes R replicas of one graph, for any R.

  Attributes:
    graph: the unchanged graph, with the whole batch if that is free.
    free_batch: whether the global batch keeps its size and is divided among the replicas.
    batch_norm: see `replicate`.
    wanted: the number of replicas that a spec of the zoo names ("zoo:rnnlm:replicas=4"), or None.
  """

  def __init__(
      self, source: Any, options: Optional[Mapping[str, Any]] = None, *,
      part: Optional[Callable[[int], ComputationGraph]] = None, batch_norm: str = REPLICA,
      keeps_copies: bool = False):
    """Remembers the source of the graphs.

    Args:
      source: anything `load_graph` takes.
      options: keyword arguments for it.
      part: builds the graph of one of R replicas, with 1/R of the batch, from R; for callers who
        can build their graph again. It raises GraphError where R does not divide the batch.
      batch_norm: "replica" or "synchronized", see `replicate`.
      keeps_copies: whether the caller keeps copies of a live function's variables equal to those
        of the program, as mirrored replicas need.
    """
    self.batch_norm, self._keeps_copies = batch_norm, keeps_copies
    self._options: Dict[str, Any] = dict(options or {})
    self._divide = part
    self._spec: Optional[str] = None
    self.wanted: Optional[int] = None
    if is_spec(source):
      source, self.wanted = split_spec(source)
      # A spec is loaded again for each batch size.
      self._spec = source
    self.graph = source if isinstance(source, ComputationGraph) else load_graph(
        source, **self._options)
    self.free_batch = (
        part is not None or self._spec is not None or unknown_batch(self.graph))
    self._parts: Dict[int, ComputationGraph] = {}
    self._made: Dict[Any, ReplicatedGraph] = {}

  def replicas(
      self, count: int, mirrored: bool = False, cluster: Optional[Cluster] = None,
      micro_batches: int = 1, slices: Optional[Mapping[str, int]] = None) -> ReplicatedGraph:
    """Returns the graph as `count` replicas, which share variables or have their own.

    Args:
      count: R.
      mirrored: see `replicate`.
      cluster: mirrored replicas share the variables that only hosts of this cluster can hold.
      micro_batches: see `replicate`.
      slices: table -> number of slices, see `sliced`.

    Returns:
      The replicas, made once for each combination of arguments.

    Raises:
      GraphError: `count` does not divide the batch, or the replicas would compute other results
        than the graph.
    """
    count = check_replicas(count)
    if mirrored and self.graph.origin.format == "concrete_function" and not self._keeps_copies:
      raise GraphError("a function's variables are objects of the program, which may write them "
                       "unseen; leave out mirrored, or train a Keras model by compile_placed")
    single: FrozenSet[str] = frozenset()
    if mirrored and cluster is not None:
      # Variables that no other device can hold are shared by all replicas, on the hosts.
      single = host_variables(self.part(count), cluster)
    key = count, mirrored, single, micro_batches, tuple(sorted((slices or {}).items()))
    if key not in self._made:
      part = self.part(count)
      made = self.replicas_of(
          part, count, None if part is self.graph else self.graph, slices or {}, mirrored=mirrored,
          single=single, micro_batches=micro_batches)
      if part is self.graph and count > 1:
        made = dataclasses.replace(made, notes=(
            f"the batch grew from {made.global_batch // count} to {made.global_batch} examples: "
            + (f"each of {count} replicas takes a batch of the input pipeline; divide the "
               f"pipeline's batch size by {count} to keep it"
               if PIPELINES.intersection(part.op_types) else
               f"it is baked into the graph, and each of {count} replicas has it whole; leave the "
               "first dimension of the feeds open, with None, to keep it"), *made.notes))
      self._made[key] = made
    return self._made[key]

  def replicas_of(
      self, part: ComputationGraph, count: int, whole: Optional[ComputationGraph],
      slices: Mapping[str, int], **options: Any) -> ReplicatedGraph:
    """Returns replicas of a part of the graph, with tables in slices; see `replicate`.

    Args:
      part: the graph of one replica, with whole tables.
      count: R.
      whole: the graph at the global batch, with whole tables, or None.
      slices: table -> number of slices.
      **options: of `replicate`.

    Returns:
      The replicas.
    """
    places: Mapping[str, Part] = {}
    if slices:
      whole = None if whole is None else sliced(whole, of_other(slices, self.graph, whole))[0]
      part, places = sliced(part, of_other(slices, self.graph, part))
    made = replicate(part, count, whole=whole, batch_norm=self.batch_norm, **options)
    return dataclasses.replace(made, slices=places)

  def slices_of(self, replicated: ReplicatedGraph) -> Dict[str, int]:
    """Returns table of `graph` -> number of slices, of replicas that this source has made."""
    found = {each.variable: each.count for each in replicated.slices.values()}
    return of_other(found, self.part(replicated.replicas), self.graph)

  def small(self, count: int, made: int) -> Iterator[Tuple[ComputationGraph, ComputationGraph]]:
    """Yields the graph with few examples for each replica, then with more, up to the global batch.

    Args:
      count: of replicas.
      made: a number of replicas whose part has been made already.

    Yields:
      (graph, the graph of one replica); nothing where each replica has the whole batch.
    """
    # Half of the batch shows which dimension of one replica's feeds is the batch.
    made = max(2, made)
    try:
      whole, part = self.graph, self.part(made)
    except GraphError:  # no two replicas divide it
      yield self.graph, self.graph
      return
    if part is whole:
      return
    # The global batch is the first dimension of a feed that is smaller in the part.
    smaller = part.origin.feed_shapes
    batch = next((shape[0] for name, shape in whole.origin.feed_shapes.items()
                  if shape and smaller.get(name, (0,))[:1] == (shape[0] // made,)), 0)
    # At least two examples for each replica, and a batch that divides. A spec takes long to load
    # again: first, the replica that is there is divided, if it is small.
    sizes: Tuple[int, ...] = (2, 3, 4, 8, 16, 32, 64)
    if self._spec is not None and 2 * count <= batch // made <= 8 * count:
      sizes = (batch // (made * count), *sizes)
    for examples in sizes:
      times = batch // (count * examples)
      if times < 2 or batch % (count * examples):
        continue
      try:
        found = self.part(times), self.part(times * count)
      except GraphError:
        continue
      yield found
    yield whole, self.part(count)

  def part(self, count: int) -> ComputationGraph:
    """Returns the graph of one of `count` replicas, before it is replicated."""
    if count not in self._parts:
      self._parts[count] = self._part(count)
    return self._parts[count]

  def _part(self, count: int) -> ComputationGraph:
    if count == 1:
      return self.graph
    if not self.free_batch:
      # If the shapes cannot be rewritten for a smaller batch, each replica has the whole batch.
      return divided_graph(self.graph, count) or self.graph
    if self._divide is not None:
      return self._divide(count)
    if self._spec is not None:
      return load_graph(_smaller_spec(self._spec, count), **self._options)
    return at_batch(self.graph, lambda size, feed: divided(size, count, f" of {feed!r}"))


def is_spec(source: object) -> bool:
  """Returns whether the source is a text that names graphs of the zoo."""
  return isinstance(source, str) and source.startswith(_ZOO)


def split_spec(spec: str) -> Tuple[str, Optional[int]]:
  """Returns a spec of the zoo without `:replicas=N`, and N or None."""
  head, found, text = spec.partition(_REPLICAS)
  if not found:
    return spec, None
  number, _, rest = text.partition(":")
  if not number.isdecimal() or int(number) < 1:
    raise GraphError(f"replicas is {number!r} in {spec!r}; expected a whole number of at least 1")
  return head + (f":{rest}" if rest else ""), int(number)


def load_with_replicas(source: Any, **options: Any) -> ComputationGraph:
  """Loads a graph, which may be a spec of the zoo with replicas ("zoo:rnnlm:replicas=4")."""
  spec, replicas = split_spec(source) if is_spec(source) else (source, None)
  if replicas is None:
    return load_graph(spec, **options)
  return ReplicaSource(spec, options).replicas(replicas).graph


def check_specs(sources: Iterable[Any]) -> None:
  """Raises GraphError if a text names no file, or an unknown model of the zoo or option of one.

  Call this before building several graphs, which can take minutes.
  """
  for source in sources:
    if is_spec(source):
      zoo.resolve(re.sub("^zoo:", "", split_spec(source)[0]))
    elif isinstance(source, str) and not os.path.exists(source):
      raise GraphError(f"there is no graph file or directory {source!r}; check the path")


def _smaller_spec(spec: str, count: int) -> str:
  """Returns the spec of one of `count` replicas."""
  from placeto_tf.zoo import registry

  prefix, _, rest = spec.partition(":")
  name, values = registry.resolve(rest if prefix == "zoo" else spec)
  if "batch" not in values:
    raise GraphError(f"{spec!r} has no option batch, so that replicas cannot divide it; place "
                     "one replica")
  values["batch"] = divided(values["batch"], count, f" of {spec!r}")
  return "zoo:" + ":".join([name, *(f"{key}={value}" for key, value in values.items())])
