"""A directory of graphs of one family: MetaGraphs, and a TFRecord of their GraphTensors.

  graphs.json             the request, and a row per graph: file, ops, groups, step time
  cifar10_0000.meta, ...  one MetaGraph per graph, for `load_graph`
  graphs.tfrecord         one GraphTensor per graph in the same order: grouped, on the cluster,
                          on the best single device, with its simulated times
  schema.pbtxt            the schema of the GraphTensors

Every file appears when it is complete. If a call is interrupted, the same call goes on where it
stopped (finished GraphTensors wait in `.unfinished/`). A larger count adds graphs.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from typing import Any, Callable, Dict, List, Optional

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

MANIFEST, RECORDS, SCHEMA, _UNFINISHED = (
    "graphs.json", "graphs.tfrecord", "schema.pbtxt", ".unfinished")

Row = Dict[str, Any]


@dataclasses.dataclass(frozen=True)
class GraphSetConfig:
  """The family, the range and the grouping of a set.

  Attributes:
    family: one of `zoo.family_names()`.
    count: how many graphs.
    first: index of the first one.
    cluster: as `Cluster.parse` takes it.
    grouping, max_groups: how ops are grouped.
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
  """Writes the missing files of a set.

  Args:
    config: of the set.
    out: the directory; files in it that are not of this set stay as they are.
    progress: called with (graphs done, graphs in all, the row) after each that was made.

  Returns:
    The rows of all graphs, in order.

  Raises:
    PlacetoError: `out` holds another set, or files that this one would overwrite, or another
      process makes graphs there.
  """
  cluster = Cluster.parse(config.cluster)
  with outputs.alone(out):
    return _make(config, cluster, out, progress)


def _make(
    config: GraphSetConfig, cluster: Cluster, out: str,
    progress: Optional[Callable[[int, int, Row], None]]) -> List[Row]:
  """Writes the missing files and returns all rows; the caller keeps other processes out."""
  rows = _claim(config, out)  # spec -> row
  unfinished = os.path.join(out, _UNFINISHED)
  os.makedirs(unfinished, exist_ok=True)
  made: List[Row] = []
  for spec in config.specs:
    name = config.file_name(spec)
    example = os.path.join(unfinished, name + ".example")
    path = os.path.join(out, name)
    # A graph is done when its row, its MetaGraph and its GraphTensor are all there.
    if not (spec in rows and os.path.exists(path)
            and (os.path.exists(example) or "record" in rows[spec])):
      meta_graph = zoo.build(spec).meta_graph_def()
      content, row = _encode(meta_graph, cluster, config)
      # The manifest names a graph last: an interrupted one is made again.
      outputs.write(example, content)
      outputs.write(path, meta_graph.SerializeToString(deterministic=True))
      rows[spec] = {"spec": spec, "model": zoo.member(spec), "file": name, **row}
      _write_manifest(config, rows, out)
      if progress is not None:
        progress(len(made) + 1, config.count, rows[spec])
    made.append(rows[spec])
  # All graphs exist: only the TFRecord is left.
  _join_records(config, rows, out)
  return made


def _encode(meta_graph: object, cluster: Cluster, config: GraphSetConfig):
  """Returns the serialized GraphTensor of a graph on its best single device, and its row."""
  import tensorflow_gnn as tfgnn  # takes seconds, so not before there is a graph to make

  graph = load_graph(meta_graph)
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


def _claim(config: GraphSetConfig, out: str) -> Dict[str, Row]:
  """Returns the rows of the graphs that exist, by spec; writes the manifest of a new set."""
  path = os.path.join(out, MANIFEST)
  # A new set may not overwrite files that no manifest claims.
  if not os.path.exists(path):
    taken = [name for name in [RECORDS, SCHEMA, *map(config.file_name, config.specs)]
             if os.path.lexists(os.path.join(out, name))]
    if taken:
      raise PlacetoError(
          f"{os.path.join(out, taken[0])} exists and belongs to no set of graphs; choose another "
          "directory")
    _write_manifest(config, {}, out)
    return {}
  stored = user_files.read_json_object(
      path, what="the list of graphs", remedy="choose another directory")
  try:
    # Any malformed content counts as a wrong file: users may have edited it.
    rows = {row["spec"]: row for row in stored["graphs"]}
    settings = {name: stored["config"][name] for name in _settings(config)}
    for row in rows.values():
      _check_row(row)
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise PlacetoError(
        f"{path} was not understood ({error!r}); choose another directory") from None
  count = len(_read_records(os.path.join(out, RECORDS)))
  for row in rows.values():
    if row.get("record", 0) >= count:
      row.pop("record", None)  # the TFRecord was deleted
  # Graphs of other settings do not belong in this set.
  for name, value in _settings(config).items():
    if settings[name] != value:
      raise PlacetoError(
          f"{out} holds graphs made with {name}={settings[name]!r}, now it is {value!r}; choose "
          "another directory")
  return rows


def _check_row(row: Row) -> None:
  """Raises TypeError or KeyError where a row lacks a field or holds a wrong type."""
  kinds: Dict[str, Any] = {
      "spec": str, "file": str, "ops": int, "groups": int, "single_device_us": (int, float),
      "record": int}
  for name, kind in kinds.items():
    if name == "record" and name not in row:  # its GraphTensor is not in the TFRecord yet
      continue
    if not isinstance(row[name], kind) or isinstance(row[name], bool):  # bool is an int
      raise TypeError(f"{name} is {row[name]!r:.60}")
  # A row names a file within the directory, never a path out of it.
  if row["file"] != os.path.basename(row["file"]) or row.get("record", 0) < 0:
    raise TypeError(f"file is {row['file']!r:.60}, record {row.get('record')!r}")


def _settings(config: GraphSetConfig) -> Dict[str, Any]:
  """Returns the settings that may not change between two calls; `count` may grow."""
  settings = dataclasses.asdict(config)
  del settings["count"]
  return settings


def _write_manifest(config: GraphSetConfig, rows: Dict[str, Row], out: str) -> None:
  """Writes graphs.json."""
  manifest = {"version": 1, "config": _settings(config), "graphs": list(rows.values())}
  outputs.write_json(os.path.join(out, MANIFEST), manifest)


def _join_records(config: GraphSetConfig, rows: Dict[str, Row], out: str) -> None:
  """Concatenates old and new GraphTensors to one TFRecord, in the order of the rows."""
  import tensorflow as tf

  unfinished, path = os.path.join(out, _UNFINISHED), os.path.join(out, RECORDS)
  new = [row for row in rows.values()
         if os.path.exists(os.path.join(unfinished, row["file"] + ".example"))]
  # Records that are there already keep their bytes; rows tell their old places.
  if new:
    old = _read_records(path)
    contents = {row["file"]: old[row["record"]] for row in rows.values() if "record" in row}
    for row in new:
      contents[row["file"]] = user_files.read_bytes(
          os.path.join(unfinished, row["file"] + ".example"), what="a GraphTensor",
          remedy="delete it and the graph of its name, so that both are made again")
    # Written beside, then renamed: the old TFRecord stays whole until the new one is.
    with tf.io.TFRecordWriter(path + ".partial") as writer:
      for row in rows.values():
        writer.write(contents[row["file"]])
    os.replace(path + ".partial", path)
    for place, row in enumerate(rows.values()):
      row["record"] = place
    _write_manifest(config, rows, out)
  shutil.copyfile(schema.SCHEMA_PATH, os.path.join(out, SCHEMA))
  shutil.rmtree(unfinished)  # the TFRecord has them now


def _read_records(path: str) -> List[bytes]:
  """Returns the serialized GraphTensors of a TFRecord; none where there is no file."""
  import tensorflow as tf

  user_files.check_regular(path, what="the GraphTensors", remedy="choose another directory")
  try:
    return [record.numpy() for record in tf.data.TFRecordDataset(path)] if os.path.exists(
        path) else []
  except tf.errors.DataLossError as error:
    raise PlacetoError(
        f"{path} is damaged ({error.message}); delete it, so that it is made again") from None
