"""Measures the processor seconds and the memory of replicating a graph.

  scripts/with_env python scripts/benchmarks/benchmark_replication.py --graph=zoo:amoebanet \\
      --replicas=8

The graph of one replica is read first, and is not measured. The measured part makes the replicas
and reads the replicated graph. Memory is the largest growth of the process; for comparison, the
growth by only reading the replicated graph is printed as well.
"""

from __future__ import annotations

import resource
import threading
import time
from typing import Callable, Tuple

from absl import flags

from placeto_tf.programs import entry_point

FLAGS = flags.FLAGS

flags.DEFINE_string("graph", "zoo:amoebanet", "The graph of one replica.")
flags.DEFINE_integer("replicas", 8, "Number of replicas.", lower_bound=2)


def _resident_bytes() -> int:
  with open("/proc/self/statm", encoding="ascii") as file:
    return int(file.read().split()[1]) * resource.getpagesize()


def grown(function: Callable[[], object]) -> Tuple[object, float, int]:
  """Returns a function's result, its processor seconds, and the largest growth of memory."""
  before, peak, done = _resident_bytes(), [0], threading.Event()

  def watch() -> None:
    while not done.wait(0.01):
      peak[0] = max(peak[0], _resident_bytes())

  watcher = threading.Thread(target=watch)
  watcher.start()
  started = time.process_time()
  try:
    result = function()
  finally:
    seconds = time.process_time() - started
    done.set()
    watcher.join()
  return result, seconds, max(peak[0], _resident_bytes()) - before


def main() -> None:
  """Measures and prints."""
  entry_point.import_tensorflow_quietly()
  from placeto_tf.graphs import load_graph
  from placeto_tf.replication import ReplicaSource, ReplicatedGraph, replicate

  one = ReplicaSource(FLAGS.graph).part(FLAGS.replicas)
  made, seconds, memory_bytes = grown(lambda: replicate(one, FLAGS.replicas))
  assert isinstance(made, ReplicatedGraph)
  graph = made.graph
  proto = graph.origin.graph_def.SerializeToString()
  feeds = {name.rpartition(":")[0]: shape for name, shape in graph.origin.feed_shapes.items()}

  def read() -> object:
    from tensorflow.core.framework import graph_pb2

    return load_graph(
        graph_pb2.GraphDef.FromString(proto), fetches=graph.fetches, feeds=graph.feeds,
        feed_shapes=feeds)

  _, read_seconds, read_bytes = grown(read)
  print(f"{one.num_ops:,} ops -> {graph.num_ops:,} ops in {seconds:.1f} s of the processor, "
        f"{1e5 * seconds / graph.num_ops:.1f} s for 100,000 ops; memory grew by "
        f"{memory_bytes / 1e6:,.0f} MB")
  print(f"reading the replicated graph takes {read_seconds:.1f} s and {read_bytes / 1e6:,.0f} MB: "
        f"replicating grows memory {memory_bytes / read_bytes:.1f} times as much")


if __name__ == "__main__":
  entry_point.run_program(main)
