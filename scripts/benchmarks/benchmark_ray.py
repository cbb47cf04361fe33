"""Measures the costs of Ray and the gain of a second node.

  scripts/with_env python scripts/benchmarks/benchmark_ray.py --tasks=24 --seconds=20

Parts:

  costs     start of nodes, connection, first task, seconds per task, bytes of tasks and updates
  evaluate  rows of evaluate.py, for annealing limited by time, on one node and on two
  killed    evaluate.py on two nodes, one of which is killed after the first row

The nodes are processes of this machine (`ray.cluster_utils.Cluster`) with one core each, under a
head node that runs no tasks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple

from absl import flags

from placeto_tf.problem import executors
from placeto_tf.programs import entry_point

FLAGS = flags.FLAGS
_STARTS = 3  # Ray gives nodes 15 to 30 s to start; a second start is faster

flags.DEFINE_list("parts", ["costs", "evaluate", "killed"], "Parts to run.")
flags.DEFINE_string("graph", "zoo:inception_v3", "Graph to place.")
flags.DEFINE_string("cluster", "k80:4", "Cluster to place on.")
flags.DEFINE_integer("tasks", 24, "Rows that evaluate.py writes, a seed each.", lower_bound=2)
flags.DEFINE_float("seconds", 20, "Seconds of the search of each row.")

_COSTS = {
    "problem_s": "making a problem, s",
    "problem_bytes": "a problem, bytes, sent to a node once",
    "share_s": "putting it into the object store, s",
    "unpickle_s": "unpickling it, s",
    "start_s": "starting a head and two nodes, s",
    "connect_s": "connecting, s",
    "first_task_s": "first task, with its process, s",
    "one_task_s": "a task and waiting for it, s",
    "task_s": "a task of 1,000 at once, s",
    "task_bytes": "a task besides its problem, bytes",
    "answer_bytes": "what it answers, bytes",
}


@contextlib.contextmanager
def _nodes(count: int) -> Iterator[Tuple[Any, List[Any], float]]:
  """Yields a cluster of `count` nodes of one core, the nodes, and the seconds of their start."""
  from ray.cluster_utils import Cluster

  with contextlib.ExitStack() as stack:
    for left in reversed(range(_STARTS)):
      began = time.monotonic()
      try:
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        stack.callback(cluster.shutdown)
        nodes = [cluster.add_node(num_cpus=1) for _ in range(count)]
        break
      except Exception:  # Ray raises plain ones where a start takes too long
        stack.close()
        if not left:
          raise
    yield cluster, nodes, time.monotonic() - began


def _timed(function: Callable[[], Any]) -> Tuple[float, Any]:
  """Returns the seconds of a call, and its result."""
  began = time.monotonic()
  found = function()
  return time.monotonic() - began, found


def _size(value: Any) -> int:
  return len(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))


def _evaluation() -> Any:
  from placeto_tf.evaluation import EvaluationConfig

  return EvaluationConfig(
      graphs=(FLAGS.graph,), clusters=(FLAGS.cluster,), methods=("annealing",),
      seeds=tuple(range(FLAGS.tasks)), max_seconds=FLAGS.seconds)


def costs() -> Dict[str, float]:
  """Prints a table of the costs of Ray and of sent data."""
  from placeto_tf.clusters import Cluster
  from placeto_tf.evaluation.evaluate import Key, run
  from placeto_tf.graphs import load_graph
  from placeto_tf.problem.placement_problem import PlacementProblem

  config = dataclasses.replace(_evaluation(), max_seconds=1.0)
  found = {}
  found["problem_s"], problem = _timed(lambda: PlacementProblem.build(
      load_graph(FLAGS.graph), Cluster.parse(FLAGS.cluster)))
  portable = problem.portable(with_shapes=True)
  key = Key(FLAGS.graph, FLAGS.cluster, "annealing", 0, None)
  found["problem_bytes"], found["task_bytes"] = _size(portable), _size((key, config))
  found["answer_bytes"] = _size(run(executors.InProcess().share((problem, None)), key, config, 1))
  content = pickle.dumps(portable)
  found["unpickle_s"], _ = _timed(lambda: pickle.loads(content))
  with _nodes(2) as (cluster, _, found["start_s"]):
    began = time.monotonic()
    with executors.executor_at(cluster.address) as executor:
      ray = executors.import_ray()
      found["connect_s"] = time.monotonic() - began
      nothing = ray.remote(num_cpus=1.0, scheduling_strategy="SPREAD")(_nothing)
      found["first_task_s"], _ = _timed(lambda: ray.get(nothing.remote()))
      ray.get([nothing.remote() for _ in range(20)])  # both nodes have a process now
      found["one_task_s"] = _timed(lambda: [ray.get(nothing.remote()) for _ in range(100)])[0] / 100
      found["task_s"] = _timed(lambda: ray.get([nothing.remote() for _ in range(1000)]))[0] / 1000
      found["share_s"], _ = _timed(lambda: executor.share(portable))
  print("| what Ray costs | |\n|---|---:|")
  for name, label in _COSTS.items():
    value = f"{found[name]:,.0f}" if name.endswith("bytes") else f"{found[name]:.3g}"
    print(f"| {label} | {value} |")
  print(flush=True)
  return found


def _nothing() -> None:
  """A task that does nothing."""


def evaluate() -> None:
  """Prints the seconds of all rows on one node and on two."""
  from placeto_tf.evaluation import evaluate as evaluate_rows

  print(f"{FLAGS.tasks} tasks of {FLAGS.seconds:g} s each\n\n| nodes | first row s | all rows s "
        "| ratio | of the cores' time |\n|" + "---:|" * 5)
  first_s = None
  for count in (1, 2):
    ends: List[float] = []
    with _nodes(count) as (cluster, *_), tempfile.TemporaryDirectory() as out:
      began = time.monotonic()
      evaluate_rows(_evaluation(), out, ray=cluster.address,
                    progress=lambda *_: ends.append(time.monotonic()))  # noqa: B023
    all_s = ends[-1] - began
    first_s = first_s or all_s
    print(f"| {count} | {ends[0] - began:.1f} | {all_s:.1f} | {first_s / all_s:.2f} "
          f"| {FLAGS.tasks * FLAGS.seconds / count / all_s:.2f} |", flush=True)
  print()


def killed() -> None:
  """Prints whether all rows are there although a node died."""
  from placeto_tf.evaluation import evaluate as evaluate_rows

  with _nodes(2) as (cluster, nodes, _), tempfile.TemporaryDirectory() as out:
    gone: List[float] = []
    began = time.monotonic()

    def kill_once(*_: Any) -> None:
      if not gone:
        gone.append(time.monotonic() - began)
        cluster.remove_node(nodes[0], allow_graceful=False)

    rows = evaluate_rows(_evaluation(), out, ray=cluster.address, progress=kill_once)
    seconds = time.monotonic() - began
  print(f"A node was killed after {gone[0]:.1f} s: {len(rows)} of {FLAGS.tasks} rows after "
        f"{seconds:.1f} s.\n", flush=True)


def main() -> None:
  """Measures the parts."""
  entry_point.import_tensorflow_quietly()
  print(f"load {os.getloadavg()[0]:.1f} at the start\n", flush=True)
  for part in FLAGS.parts:
    {"costs": costs, "evaluate": evaluate, "killed": killed}[part]()
  print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
  entry_point.run_program(main)
