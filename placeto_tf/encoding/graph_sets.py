"""A directory of graphs of one family: MetaGraphs, and a TFRecord of their GraphTensors.

  graphs.json             the settings, and a row per graph: file, ops, groups, step time
  cifar10_0000.meta, ...  one MetaGraph per graph, for `load_graph`
  graphs.tfrecord         one GraphTensor per graph in the same order: grouped, on the cluster,
                          on the best single device, with its simulated times
  schema.pbtxt            the schema of the GraphTensors

The files appear when all of them are complete, and replace those of an earlier call.
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
from placeto_tf.files import outputs
from placeto_tf.graphs import load_graph
from placeto_tf.on_use import tf
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
    _ = self.specs  # checks family and range; `group_ops` checks the grouping

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
  """Writes a set: MetaGraphs and their GraphTensors.

  Args:
    config: of the set.
    out: the directory; files that were not written by an earlier call are not changed.
    progress: called with (graphs done, all graphs, the row) after each graph.

  Returns:
    The rows of all graphs, in order.

  Raises:
    PlacetoError: files in `out` would be overwritten.
  """
  cluster = Cluster.parse(config.cluster)
  rows: List[Row] = []
  with outputs.ResultDirectory(out) as results:
    results.claim([MANIFEST, RECORDS, SCHEMA, *map(config.file_name, config.specs)])
    with tf.io.TFRecordWriter(os.path.join(results.path, RECORDS)) as writer:
      for spec in config.specs:
        name = config.file_name(spec)
        path = os.path.join(results.path, name)
        outputs.write(path, zoo.build(spec).meta_graph_def().SerializeToString(deterministic=True))
        content, row = _encode(path, cluster, config)
        writer.write(content)
        rows.append({"spec": spec, "model": zoo.member(spec), "file": name, **row})
        if progress is not None:
          progress(len(rows), config.count, rows[-1])
    shutil.copyfile(schema.SCHEMA_PATH, os.path.join(results.path, SCHEMA))
    outputs.write_json(os.path.join(results.path, MANIFEST), {
        "version": 1, "config": dataclasses.asdict(config), "graphs": rows})
    results.publish()
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
