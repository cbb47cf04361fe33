"""Several signatures of a SavedModel, placed in one run.

A server runs one signature a request, so each has a step of its own. What they share (variables,
tables, ops of the graph itself) can be in one place only. The signatures are therefore placed one
after the other, in the order in which they are named: the first freely, each later one with all
that it shares with those before it, and what TensorFlow colocates with that, where it is.

Memory is shared too: what the others hold is taken from a device before a signature is placed.

Legend: N ops of a signature, D devices.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from typing import Any, ContextManager, Dict, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import GraphError, PlacementError
from placeto_tf.graphs import ComputationGraph, load_graph
from placeto_tf.graphs.saved_model_reading import (
  ALL_SIGNATURES,
  is_choice_note,
  signature_keys,
)
from placeto_tf.placements import Placement
from placeto_tf.placing.config import PlacingConfig
from placeto_tf.placing.observing import SILENT, Observer, Progress
from placeto_tf.placing.one_graph import place_graph
from placeto_tf.placing.result import Baseline, PlacingResult
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.ledger import Ledger
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search import PLACERS

_EVALUATIONS_AFTER_INTERRUPT = 8  # of each signature that is left: the references and no search


@dataclasses.dataclass(frozen=True, eq=False)
class SignatureGraphs:
  """The signatures of a SavedModel.

  Attributes:
    whole: a graph whose step runs them all: what is written.
    parts: key -> the graph of that signature alone, in the order in which they are placed.
  """

  whole: ComputationGraph
  parts: Mapping[str, ComputationGraph]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SignaturesResult:
  """What `place()` found for several signatures.

  Attributes:
    placement: op name -> device name, for every op of the file.
    results: key -> what was found for that signature; its rows "current" and "single"
      are of the graph as it came, with nothing where an earlier signature wants it.
    graph: a graph whose step runs all signatures.
    cluster, config: where and how they were placed.
    held_bytes: [D] variables and constants of all signatures.
    notes: what concerns more than one signature.
  """

  placement: Placement
  results: Mapping[str, PlacingResult]
  graph: ComputationGraph
  cluster: Cluster
  config: PlacingConfig
  held_bytes: np.ndarray  # [D]
  notes: Tuple[str, ...] = ()

  def __repr__(self) -> str:
    """What was found, in a line."""
    steps = ", ".join(f"{key!r} {found.step_time_us / 1e3:,.1f} ms"
                      for key, found in self.results.items())
    return f"SignaturesResult({steps}; {self.graph.num_ops:,} ops)"


def load_signatures(
    saved_model: Any, signatures: Union[str, Sequence[str]], options: Mapping[str, Any]
) -> SignatureGraphs:
  """Reads the graph of each signature, and of all together.

  Args:
    saved_model, signatures: its directory, and the keys or "all".
    options: the others of `load_graph`.

  Raises:
    GraphError: the SavedModel, a signature or an option is wrong.
  """
  path = os.fspath(saved_model)
  for name in ("fetches", "feeds"):
    if options.get(name):
      raise GraphError(
          f"{name} are those of the signatures where several are placed; leave {name} out, or name "
          "one signature")
  keys = signature_keys(path, options.get("tags")) if signatures == ALL_SIGNATURES else (
      (signatures,) if isinstance(signatures, str) else tuple(signatures))
  twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
  if twice is not None or not keys:
    raise GraphError(
        f"the signature {twice!r} is named twice; name each once" if keys else
        "no signature is named; name one, or all")
  options = {name: value for name, value in options.items() if name != "signature"}
  whole = load_graph(path, **options, signature=keys)
  parts = {}
  for key in keys:
    part = load_graph(path, **options, signature=key)
    # What is said of all of them is said once.
    parts[key] = dataclasses.replace(part, notes=tuple(
        note for note in part.notes if note not in whole.notes and not is_choice_note(note)))
  return SignatureGraphs(whole, parts)


def folder_of(key: str) -> str:
  """A name for the results of a signature that is good for a file; each key has its own."""
  clean = re.sub(r"[^\w-]+", "_", key, flags=re.ASCII)[:80]
  if clean and clean == key:
    return key
  return f"{clean}_{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def place_graphs(
    graphs: SignatureGraphs,
    cluster: Cluster,
    config: PlacingConfig,
    *,
    root_dir: Optional[str] = None,
    observer: Observer = SILENT,
) -> SignaturesResult:
  """Places signatures one after the other; each has an equal share of the budget.

  Args:
    graphs: of the signatures.
    cluster: devices and links.
    config: how; its budget is for all together.
    root_dir: as for `place_graph`, a directory below it for each signature.
    observer: is told how it goes; a search has the name of its signature's folder.

  Raises:
    PlacementError: several replicas are asked for, or the signatures do not fit together.
  """
  if config.replicas != 1:
    raise PlacementError(
        f"replicas is {config.replicas!r} with several signatures; replicas are of a training "
        "step: place one signature")
  results: Dict[str, PlacingResult] = {}
  devices = _Devices(graphs.whole, cluster)
  interrupted = False
  for key, graph in graphs.parts.items():
    share = _share(config, len(graphs.parts), interrupted)
    found = place_graph(
        devices.fixed_in(graph), devices.room_for(graph), share,
        root_dir=None if root_dir is None else os.path.join(root_dir, folder_of(key)),
        observer=_OfSignature(key, observer))
    devices.take(graph, found)
    interrupted |= found.interrupted
    results[key] = found if len(results) == 0 else _with_free_baselines(graph, cluster, found)
  return _joined(graphs, cluster, config, results, devices)


class _OfSignature(Observer):
  """Has another observer told what happens to the signature of a key."""

  def __init__(self, key: str, observer: Observer):
    self._key, self._observer = key, observer

  def stage(self, name: str) -> ContextManager[Any]:
    return self._observer.stage(f"{self._key}: {name}")

  def search(self, name: str, budget: Budget) -> ContextManager[Progress]:
    return self._observer.search(folder_of(self._key), budget)


class _Devices:
  """Where the ops are that were placed, and what they hold.

  Attributes:
    of_op: op name -> index of its device.
  """

  def __init__(self, whole: ComputationGraph, cluster: Cluster):
    self._whole = whole
    self._cluster = cluster
    self.of_op: Dict[str, int] = {}
    self._of_set: Dict[int, int] = {}  # first op of a colocated set of the whole -> its device
    self._held_bytes: Dict[str, float] = {}

  def take(self, graph: ComputationGraph, found: PlacingResult) -> None:
    """Notes what was found for a signature."""
    for name, device, held in zip(
        graph.op_names, found.indices.tolist(), found.costs.persistent_bytes.tolist()):
      self.of_op.setdefault(name, device)
      self._of_set.setdefault(self._set_of(name), device)
      self._held_bytes.setdefault(name, held)

  def fixed_in(self, graph: ComputationGraph) -> ComputationGraph:
    """The graph of a signature with what is placed already fixed, one op of each colocated set."""
    fixed: Dict[str, str] = {}
    seen = set()
    for name, label in zip(graph.op_names, graph.colocation.tolist()):
      device = self._of_set.get(self._set_of(name))
      if device is not None and label not in seen:
        seen.add(label)
        fixed[name] = self._cluster.device_names[device]
    assert graph.source is not None  # it was read from a file
    return dataclasses.replace(
        graph, source=dataclasses.replace(graph.source, fixed_devices=fixed))

  def room_for(self, graph: ComputationGraph) -> Cluster:
    """The cluster without the memory that ops of other signatures hold."""
    taken = self.held_bytes(without=graph)
    return dataclasses.replace(self._cluster, devices=tuple(
        dataclasses.replace(device, memory_bytes=max(1, int(device.memory_bytes - taken[d])))
        for d, device in enumerate(self._cluster.devices)))

  def held_bytes(self, without: Optional[ComputationGraph] = None) -> np.ndarray:
    """[D] what the ops placed so far hold, those of a graph left out."""
    found = np.zeros(self._cluster.num_devices)
    for name, held in self._held_bytes.items():
      if without is None or name not in without.op_index:
        found[self.of_op[name]] += held
    return found

  def _set_of(self, name: str) -> int:
    return int(self._whole.colocation[self._whole.op_index[name]])


def _share(config: PlacingConfig, count: int, interrupted: bool) -> PlacingConfig:
  """The options of one of `count` signatures."""
  if interrupted:
    return dataclasses.replace(
        config, max_evaluations=_EVALUATIONS_AFTER_INTERRUPT, max_seconds=None)
  budget = config.budget
  return dataclasses.replace(
      config,
      max_seconds=None if budget.max_seconds is None else budget.max_seconds / count,
      max_evaluations=None if budget.max_evaluations is None else max(
          1, budget.max_evaluations // count))


def _with_free_baselines(
    graph: ComputationGraph, cluster: Cluster, found: PlacingResult) -> PlacingResult:
  """The result beside the graph as it came and on one device, where no earlier one fixed ops."""
  problem = PlacementProblem.build(graph, cluster, costs=found.costs, max_groups=1)
  ledger = Ledger(problem)
  for name in ("current", "single"):
    ledger.run(name, PLACERS[name], found.config.budget, found.config.seed)
  rows = {entry.name: Baseline.of(problem, entry) for entry in ledger.entries}
  return dataclasses.replace(found, baselines={**found.baselines, **rows})


def _joined(
    graphs: SignatureGraphs, cluster: Cluster, config: PlacingConfig,
    results: Dict[str, PlacingResult], devices: _Devices) -> SignaturesResult:
  """One placement of all; every result speaks of it."""
  whole = graphs.whole
  placement = Placement.from_indices(
      whole, cluster, np.array([devices.of_op[name] for name in whole.op_names], dtype=np.int32),
      method=config.method, seed=config.seed,
      evaluations=sum(found.evaluations for found in results.values()))
  notes = list(whole.notes)
  for key, graph in graphs.parts.items():
    found = results[key]
    peak = found.peak_memory_bytes + devices.held_bytes(without=graph)
    over = np.flatnonzero(peak > cluster.memory_bytes)
    if len(over):
      d = int(over[0])
      raise PlacementError(
          f"the signatures do not fit together: {key!r} takes {peak[d] / 2**30:.2f} GB of "
          f"{cluster.device_names[d]}, variables of the others included, which has "
          f"{cluster.memory_bytes[d] / 2**30:.2f} GB; name the signature with the largest "
          "variables first, or add devices")
    before_us = found.baselines["current"].step_time_us
    if before_us is not None and found.step_time_us > before_us:
      notes.append(
          f"the signature {key!r} takes {found.step_time_us / 1e3:,.1f} ms, longer than the "
          f"{before_us / 1e3:,.1f} ms of the graph as it is, because of what it shares with those "
          "before it; name it earlier if it matters more")
    own = found.placement
    results[key] = dataclasses.replace(
        found, cluster=cluster, config=config, graph=graph,
        placement=dataclasses.replace(
            own, op_devices=placement.op_devices, cluster=placement.cluster,
            baselines={name: {"step_time_us": row.step_time_us, "fits": row.fits}
                       for name, row in found.baselines.items()}))
  return SignaturesResult(
      placement, results, whole, cluster, config, devices.held_bytes(), tuple(notes))
