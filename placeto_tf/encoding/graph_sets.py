"""A directory of graphs of one family: MetaGraphs, and a TFRecord of their GraphTensors.

  graphs.json             the settings, and a row per graph: file, ops, groups, step time
  cifar10_0000.meta, ...  one MetaGraph per graph, for `load_graph`
  graphs.tfrecord         one GraphTensor per graph in the same order: grouped, on the cluster,
                          on the best single device, with its simulated times
  schema.pbtxt            the schema of the GraphTensors

Every file appears when it is complete. If a call is interrupted, the same call reuses the existing
MetaGraphs. A larger count adds graphs.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from placeto_tf import zoo
from placeto_tf.clusters import Cluster
from placeto_tf.encoding import graph_tensor, schema
from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.encoding.pair_features import PairState
from placeto_tf.encoding.pair_tables import PairTables
from placeto_tf.errors import PlacetoError
from placeto_tf.files import outputs, user_files
from placeto_tf.graphs import load_graph
from placeto_tf.grouping import METHODS
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.simple import single

MANIFEST, RECORDS, SCHEMA = "graphs.json", "graphs.tfrecord", "schema.pbtxt"

Row = Dict[str, Any]


@dataclasses.dataclass(frozen=True)
class GraphSetConfig:
  """The family, the range and the grouping of a set.

  Attributes:
    family: one of `zoo.family_names()`.
    count: number of graphs.
    first: index of the first graph.
    cluster: spec of the cluster for `Cluster.parse`.
    grouping, max_groups: settings of the grouping of ops.
  """

  family: str
  count: int
  first: int = 0
  cluster: str = "k80:4"
  grouping: str = "heavy_edge"
  max_groups: int = 100

  def __post_init__(self):
    _ = self.specs  # checks family and range
    if self.grouping not in METHODS:
      raise PlacetoError(
          f"there is no grouping called {self.grouping!r}; choose one of {', '.join(METHODS)}")
    if self.max_groups < 1:
      raise PlacetoError(f"max_groups is {self.max_groups}; expected at least 1")

  @property
  def specs(self) -> List[str]:
    """Returns the specs of the single graphs."""
    return zoo.expand(f"family:{self.family}[{self.first}:{self.first + self.count}]")

  def file_name(self, spec: str) -> str:
    """Returns the file name of a graph's MetaGraph.

    Args:
      spec: of the graph, such as "family:cifar10[3]".

    Returns:
      Such as "cifar10_0003.meta".
    """
    return f"{self.family}_{int(spec[:-1].partition('[')[2]):04d}.meta"


def make_graph_set(
    config: GraphSetConfig, out: str, *,
    progress: Optional[Callable[[int, int, Row], None]] = None) -> List[Row]:
  """Writes a set: the missing MetaGraphs, then the GraphTensors.

  Args:
    config: of the set.
    out: the directory; files that do not belong to the set are not changed.
    progress: called with (graphs done, all graphs, the row) after each graph.

  Returns:
    The rows of all graphs, in order.

  Raises:
    PlacetoError: `out` holds another set, or files that this one would overwrite, or another
      process makes graphs there.
  """
  import tensorflow as tf

  cluster = Cluster.parse(config.cluster)
  with outputs.alone(out):
    _claim(config, out)
    rows: List[Row] = []
    path = os.path.join(out, RECORDS)
    # Written to another file and renamed, so that an old TFRecord is whole until the new one is.
    with tf.io.TFRecordWriter(path + ".partial") as writer:
      for spec in config.specs:
        name = config.file_name(spec)
        graph_path = os.path.join(out, name)
        if not os.path.exists(graph_path):
          outputs.write(graph_path, zoo.build(spec).meta_graph_def().SerializeToString(
              deterministic=True))
        content, row = _encode(graph_path, cluster, config)
        writer.write(content)
        rows.append({"spec": spec, "model": zoo.member(spec), "file": name, **row})
        if progress is not None:
          progress(len(rows), config.count, rows[-1])
    os.replace(path + ".partial", path)
    shutil.copyfile(schema.SCHEMA_PATH, os.path.join(out, SCHEMA))
    _write_manifest(config, rows, out)
  return rows


def _encode(path: str, cluster: Cluster, config: GraphSetConfig) -> Tuple[bytes, Row]:
  """Returns the serialized GraphTensor of a graph on its best single device, and its row."""
  import tensorflow_gnn as tfgnn  # takes seconds, so only if there is a graph to make

  graph = load_graph(path)
  problem = PlacementProblem.build(
      graph, cluster, grouping=config.grouping, max_groups=config.max_groups)
  grouping = problem.grouping
  # The GraphTensor shows the best single device, simulated, with the features of all pairs.
  grouped = GroupedGraph.of(problem)
  placement = problem.project(single(problem))
  simulated = problem.simulator.simulate(grouping.expand(placement))
  state = PairState(PairTables.build(problem))
  state.observe(
      placement, simulated.start_us, simulated.step_time_us, simulated.peak_memory_bytes)
  tensor = graph_tensor.encode(
      grouped, placement, step_time_us=simulated.step_time_us,
      start_us=simulated.start_us[grouped.main_op],  # a group starts with its main op
      pairs=state.features(np.arange(grouped.num_groups, dtype=np.int32)))
  row = {
      "fingerprint": graph.fingerprint, "ops": graph.num_ops, "groups": grouping.num_groups,
      "single_device_us": float(simulated.step_time_us), "fits": bool(simulated.fits)}
  return tfgnn.write_example(tensor).SerializeToString(deterministic=True), row


def _claim(config: GraphSetConfig, out: str) -> None:
  """Checks that a directory holds this set, or writes the manifest of a new one."""
  path = os.path.join(out, MANIFEST)
  # A new set may not overwrite files that no manifest claims.
  if not os.path.lexists(path):
    taken = [name for name in [RECORDS, SCHEMA, *map(config.file_name, config.specs)]
             if os.path.lexists(os.path.join(out, name))]
    if taken:
      raise PlacetoError(
          f"{os.path.join(out, taken[0])} exists and belongs to no set of graphs; choose another "
          "directory")
    _write_manifest(config, [], out)
    return
  stored = user_files.read_json_object(
      path, what="the list of graphs", remedy="choose another directory").get("config")
  # Graphs of other settings do not belong in this set.
  for name, value in _settings(config).items():
    if not isinstance(stored, dict) or stored.get(name) != value:
      found = stored.get(name) if isinstance(stored, dict) else stored
      raise PlacetoError(
          f"{out} holds graphs made with {name}={found!r:.60}, now it is {value!r}; choose "
          "another directory")


def _settings(config: GraphSetConfig) -> Dict[str, Any]:
  """Returns the settings that may not change between two calls; `count` may grow."""
  settings = dataclasses.asdict(config)
  del settings["count"]
  return settings


def _write_manifest(config: GraphSetConfig, rows: List[Row], out: str) -> None:
  """Writes graphs.json."""
  outputs.write_json(os.path.join(out, MANIFEST), {
      "version": 1, "config": _settings(config), "graphs": rows})
