"""`place()` and `simulate()`, the entry points for placing.

A graph is placed by `one_graph`, and replicas of a graph by `replica_search`; both return a
`PlacingResult`.

Dimensions: N ops, D devices.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Tuple, Union

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.costs.look import looking
from placeto_tf.errors import ClusterError
from placeto_tf.graphs import ComputationGraph, load_graph
from placeto_tf.graphs.loading import LOAD_OPTIONS
from placeto_tf.placements import Placement
from placeto_tf.placing import one_graph, replica_search, summaries
from placeto_tf.placing.config import PlacingConfig, check_names
from placeto_tf.placing.observing import SILENT, Observer, Progress, observer_of
from placeto_tf.placing.result import PlacingResult
from placeto_tf.replication.batches import ReplicaSource, is_spec, split_spec
from placeto_tf.simulation import SimulationResult, Simulator

Loaded = Union[ComputationGraph, ReplicaSource]


def place(
    graph: Any,
    cluster: Union[Cluster, str, None] = None,
    method: str = "auto",
    *,
    root_dir: Optional[str] = None,
    progress: Union[bool, Progress, None] = None,
    **options: Any,
) -> PlacingResult:
  """Chooses the device of each op of a graph.

  Args:
    graph: a `ComputationGraph`, or anything `load_graph` takes; for several replicas also a
      `ReplicaSource`.
    cluster: a `Cluster`, or text for `Cluster.parse`.
    method: see `PlacingConfig`.
    root_dir: directory for TensorBoard events of the search; None writes none.
    progress: True shows a progress bar on stderr or in a notebook, False shows none. None shows a
      bar if stderr is a terminal, or in a notebook. A callable is called from time to time instead.
    **options: the other fields of `PlacingConfig` (max_seconds, max_evaluations, seed, ...), and
      options of `load_graph` (batch_size, fetches, ...) if the graph is still to be loaded.

  Returns:
    The placement, its simulated step, and the baselines that it is compared with.

  Raises:
    PlacetoError: the graph, cluster or an option is wrong, or no placement fits in memory.
  """
  config, loading = _options_of(method, options, graph)
  if cluster is None:
    raise ClusterError("no cluster is given; expected one such as \"v100:4\", or \"local\"")
  cluster = Cluster.parse(cluster) if isinstance(cluster, str) else cluster
  return place_with(
      load(graph, config, loading), cluster, config, root_dir=root_dir,
      observer=observer_of(progress))


def _options_of(
    method: str, options: Mapping[str, Any], graph: Any) -> Tuple[PlacingConfig, Dict[str, Any]]:
  """Divides the options of `place` into options of placing and options of `load_graph`."""
  loading = {name: value for name, value in options.items() if name in LOAD_OPTIONS}
  placing = {name: value for name, value in options.items() if name not in LOAD_OPTIONS}
  check_names(options, LOAD_OPTIONS)
  if loading and isinstance(graph, ComputationGraph):
    raise TypeError(
        f"place() got {sorted(loading)[0]!r} for a graph that has been read; give it to "
        "load_graph")
  return PlacingConfig(method=method, **placing), loading


def load(graph: Any, config: PlacingConfig, loading: Mapping[str, Any]) -> Loaded:
  """Loads a graph, or the source of its replicas, for `place_with`.

  Args:
    graph: see `place`.
    config: the options, which tell whether replicas are wanted; if not, a spec of the zoo may
      ("zoo:rnnlm:replicas=4").
    loading: options of `load_graph`.

  Returns:
    A `ComputationGraph`, or a `ReplicaSource` if several replicas are wanted.

  Raises:
    PlacetoError: the graph cannot be read.
  """
  named = split_spec(graph)[1] if is_spec(graph) else None
  if config.replicas != 1 or named not in (None, 1):
    return graph if isinstance(graph, ReplicaSource) else ReplicaSource(
        graph, loading, batch_norm=config.batch_norm)
  return graph if isinstance(graph, ComputationGraph) else load_graph(graph, **loading)


def place_with(
    loaded: Loaded,
    cluster: Cluster,
    config: PlacingConfig,
    *,
    root_dir: Optional[str] = None,
    observer: Observer = SILENT,
) -> PlacingResult:
  """Places like `place()`, with the options in a `PlacingConfig`.

  Args:
    loaded: the result of `load`.
    cluster, config: the devices, and the options.
    root_dir: directory for TensorBoard events of the search; None writes none.
    observer: receives the progress.

  Returns:
    The result of `place()`.

  Raises:
    PlacetoError: an option is wrong for this graph and cluster, or no placement fits in memory.
  """
  with looking(config.look):
    result = (
        one_graph.place_graph(loaded, cluster, config, root_dir=root_dir, observer=observer)
        if isinstance(loaded, ComputationGraph) else
        replica_search.place_replicas(loaded, cluster, config, observer=observer))
  if root_dir is not None:
    with observer.stage("Writing TensorBoard's events"):
      summaries.write_events(result, root_dir)
  return result


def simulate(
    graph: Any, cluster: Union[Cluster, str], placement: Union[Placement, str, np.ndarray],
    *, costs: str = "grappler", any_graph: bool = False,
) -> SimulationResult:
  """Simulates one step of a placement.

  Args:
    graph: a `ComputationGraph`, or anything `load_graph` takes.
    cluster: a `Cluster`, or text for `Cluster.parse`.
    placement: a `Placement`, the path of a placement.json, or [N] device indices.
    costs: "grappler" or the path of a file of measured costs.
    any_graph: whether the `Placement` may be of another graph with the same ops.

  Returns:
    A `placeto_tf.simulation.SimulationResult`.

  Raises:
    PlacetoError: the graph, cluster, costs or placement is wrong.
  """
  cluster = Cluster.parse(cluster) if isinstance(cluster, str) else cluster
  graph = graph if isinstance(graph, ComputationGraph) else load_graph(graph)
  if isinstance(placement, str):
    placement = Placement.load(placement)
  # Op names -> [N] indices in the order of the graph's ops.
  if isinstance(placement, Placement):
    placement = placement.indices(graph, cluster, any_graph=any_graph)
  simulator = Simulator(graph, estimate_costs(graph, cluster, source=costs), cluster)
  return simulator.simulate(np.asarray(placement, dtype=np.int32))
