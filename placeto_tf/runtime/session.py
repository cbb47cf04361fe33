"""Makes sessions that run a graph exactly as placed, and finds the devices that its nodes ran on.

A session cannot switch off one rewriting: on x86 TensorFlow swaps kernels for those of oneDNN after
the graph is split among devices, and fuses ops (Conv2D with BiasAdd) on the same device. The
swapped kernels, and so the last bits of results, depend on the placement. Setting
`TF_ENABLE_ONEDNN_OPTS=0` in the environment before TensorFlow is first imported turns this off;
`swaps_kernels` returns whether it is on.
"""

from __future__ import annotations

import time
from typing import Any, Dict, Set

from placeto_tf.clusters import device_names
from placeto_tf.errors import PlacementError
from placeto_tf.on_use import ConfigProto, RunMetadata, RunOptions, tf


class BoundedSession:
  """A session with a time-out for each run, which is abandoned after an error."""

  def __init__(self, target: str, tf_graph: tf.Graph, config: ConfigProto, timeout_seconds: float):
    """Opens the session."""
    self._timeout_ms = config.operation_timeout_in_ms = int(timeout_seconds * 1e3)
    self._session = tf.compat.v1.Session(target, graph=tf_graph, config=config)

  def run(self, fetches: Any, feeds: Any = None) -> float:
    """Runs fetches once.

    Args:
      fetches, feeds: as for `tf.compat.v1.Session.run`.

    Returns:
      The seconds that the run took.
    """
    options = tf.compat.v1.RunOptions()
    started = time.perf_counter()
    self._run(fetches, feeds, options)
    return time.perf_counter() - started

  def traced_run(self, fetches: Any, feeds: Any = None) -> RunMetadata:
    """Runs fetches once with a trace."""
    metadata = tf.compat.v1.RunMetadata()
    self._run(fetches, feeds, trace_options(), metadata)
    return metadata

  def _run(self, fetches: Any, feeds: Any, options: RunOptions, metadata: Any = None) -> None:
    options.timeout_in_ms = self._timeout_ms
    try:
      self._session.run(fetches, feeds, options=options, run_metadata=metadata)
    except BaseException:
      self.abandon()
      raise

  def close(self) -> None:
    """Closes the session, unless it was abandoned."""
    self._session.close()

  def abandon(self) -> None:
    """Lets go of the session, which may have lost its workers.

    Closing it would ask its workers again and again until the operation's time-out, and block
    every thread of Python. The session closes itself when it is collected.
    """
    if self._session.sess_str:
      # close() then does nothing; "" as an address is a session of this process.
      self._session._closed = True
    else:
      self._session.close()


def session_config(*, num_cpus: int = 1) -> ConfigProto:
  """Returns a ConfigProto with which devices are obeyed and the graph is run unchanged.

  Soft placement is off: an op without a kernel on its device is an error, not moved. Optimisers
  are off, of grappler as well as of the older kind, because they fold, fuse and move ops; each
  kind has its own switch. An op has one thread: sums are taken in one order, so equal runs give
  equal bits.

  Args:
    num_cpus: number of the session's CPU devices, "/CPU:0" and so on.
  """
  v1 = tf.compat.v1
  config = v1.ConfigProto(
      device_count={"CPU": num_cpus},
      allow_soft_placement=False,
      intra_op_parallelism_threads=1,
  )
  options = config.graph_options
  # The older optimisers, then grappler.
  options.optimizer_options.opt_level = v1.OptimizerOptions.L0
  options.rewrite_options.disable_meta_optimizer = True
  return config


def swaps_kernels() -> bool:
  """Returns whether TensorFlow swaps kernels for oneDNN's here, so that ops may be fused."""
  from tensorflow.python.util import _pywrap_util_port

  return bool(_pywrap_util_port.IsMklEnabled())


def trace_options() -> RunOptions:
  """Returns RunOptions with which a run records its nodes and its partition graphs."""
  return tf.compat.v1.RunOptions(
      trace_level=tf.compat.v1.RunOptions.FULL_TRACE, output_partition_graphs=True)


def executed_devices(run_metadata: RunMetadata) -> Dict[str, Set[str]]:
  """Maps node names to the canonical devices on which they ran, by the trace of a run.

  Nodes of the runtime's own are among them (`_SOURCE`, sends and receives, casts of feeds). A
  kernel may be traced on a stream of its device as well; those entries repeat it and are left
  out.
  """
  found: Dict[str, Set[str]] = {}
  for device_stats in run_metadata.step_stats.dev_stats:
    device = device_names.local_name(device_stats.device)
    if device is None:
      continue
    for node in device_stats.node_stats:
      found.setdefault(node.node_name, set()).add(device)
  return found


def partitioned_devices(run_metadata: RunMetadata) -> Dict[str, Set[str]]:
  """Maps node names to canonical devices of the partitions that hold them, as they were run."""
  found: Dict[str, Set[str]] = {}
  for partition in run_metadata.partition_graphs:
    for node in partition.node:
      device = device_names.local_name(node.device)
      if device is None:
        raise PlacementError(
            f"node {node.name!r} ran on {node.device!r}, expected a device with type and index")
      found.setdefault(node.name, set()).add(device)
  return found
