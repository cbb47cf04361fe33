"""Compares clusters for one graph: is a second device, or a faster link, worth having?

  scripts/with_env python examples/compare_clusters.py

Presets are described machines. A cluster of your own is a JSON file, or a preset with other links,
as here.
"""

from __future__ import annotations

import dataclasses
from typing import Dict

import placeto_tf as placeto

GRAPH = "zoo:rnnlm:batch=16:layers=2:steps=4:hidden=512:vocab=1000"


def clusters() -> Dict[str, placeto.Cluster]:
  """Name -> cluster: one and two K80s, and two whose links are ten times as fast."""
  two = placeto.Cluster.parse("k80:2")
  fast = dataclasses.replace(
      two, bandwidth_bytes_per_us=10 * two.bandwidth_bytes_per_us, latency_us=two.latency_us / 10)
  return {"one K80": placeto.Cluster.parse("k80:1"), "two K80s": two, "two, fast links": fast}


def main() -> None:
  """Prints a row per cluster."""
  graph = placeto.load_graph(GRAPH)
  print(f"{graph.num_ops} ops\n{'cluster':16s} {'one device':>11s} {'expert':>9s} {'placed':>9s}")
  for name, cluster in clusters().items():
    result = placeto.place(graph, cluster, "annealing", max_evaluations=300, seed=0)
    times_us = [result.baselines["single"].step_time_us, result.baselines["expert"].step_time_us,
                result.step_time_us]
    single, expert, placed = (f"{time_us / 1000:.2f} ms" for time_us in times_us)
    print(f"{name:16s} {single:>11s} {expert:>9s} {placed:>9s}")


if __name__ == "__main__":
  main()
