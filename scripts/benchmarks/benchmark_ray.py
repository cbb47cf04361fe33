"""Measures what Ray costs and what a second node gains, and what follows for a thousand cores.

  scripts/with_env python scripts/benchmarks/benchmark_ray.py --tasks=24 --seconds=20
  scripts/with_env python scripts/benchmarks/benchmark_ray.py --parts=costs,paper

Parts:

  costs     start of nodes, connection, first task, seconds a task, bytes of tasks and updates
  evaluate  evaluate.py's rows, annealing that ends by time, on one node and on two
  train     moves a second of train.py --policy=device_pointer on one node and on two
  killed    evaluate.py on two nodes, one of which dies after the first row
  paper     from costs and train: 1,000 cores and 10,000 graphs, and what gives way first

The nodes are processes of this machine (`ray.cluster_utils.Cluster`) with one core each, below a
head that runs no tasks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import shutil
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple

from absl import flags

from placeto_tf.problem import ray_executor
from placeto_tf.programs import entry_point

FLAGS = flags.FLAGS
PARTS = ("costs", "evaluate", "train", "killed", "paper")

flags.DEFINE_list("parts", list(PARTS), "What is measured.")
flags.DEFINE_string("graph", "zoo:inception_v3", "Graph.")
flags.DEFINE_string("cluster", "k80:4", "Cluster.")
flags.DEFINE_integer("tasks", 24, "Tasks of evaluate, a seed each.", lower_bound=2)
flags.DEFINE_float("seconds", 20, "Time of each.")
flags.DEFINE_integer("updates", 8, "Updates of train that are measured.", lower_bound=1)
flags.DEFINE_integer("episodes", 4, "Episodes of an update.", lower_bound=1)
flags.DEFINE_integer("cores", 1000, "Cores on paper.")
flags.DEFINE_integer("graphs", 10_000, "Graphs on paper.")

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
_FIRST = 2  # updates that are not measured: actors start and load in them
_GIGABIT_S = 125e6  # bytes


@contextlib.contextmanager
def _nodes(count: int) -> Iterator[Tuple[Any, List[Any], float]]:
  """A cluster of so many nodes of one core, these, and the seconds that they took to start."""
  from ray.cluster_utils import Cluster

  with contextlib.ExitStack() as stack:
    for left in reversed(range(ray_executor.STARTS)):
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


@contextlib.contextmanager
def _folder() -> Iterator[str]:
  path = tempfile.mkdtemp(prefix="benchmark_ray_")
  try:
    yield path
  finally:
    shutil.rmtree(path)


def _timed(function: Callable[[], Any]) -> Tuple[float, Any]:
  """Seconds, and what it returned."""
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
  """What Ray and what is sent cost; prints a table."""
  from placeto_tf.clusters import Cluster
  from placeto_tf.evaluation import runs
  from placeto_tf.evaluation.evaluate import problem_factory
  from placeto_tf.graphs import load_graph
  from placeto_tf.problem.executor import Executor

  config = dataclasses.replace(_evaluation(), max_seconds=1.0)
  found = {}
  found["problem_s"], problem = _timed(lambda: problem_factory(
      load_graph(FLAGS.graph), Cluster.parse(FLAGS.cluster), config)())
  portable, key = problem.portable(with_shapes=True), (FLAGS.graph, FLAGS.cluster, "annealing", 0)
  found["problem_bytes"], found["task_bytes"] = _size(portable), _size((key, config))
  found["answer_bytes"] = _size(runs.run(Executor().share((problem, None)), key, config, 1))
  content = pickle.dumps(portable)
  found["unpickle_s"], _ = _timed(lambda: pickle.loads(content))
  with _nodes(2) as (cluster, _, found["start_s"]):
    began = time.monotonic()
    with ray_executor.connected(cluster.address) as ray:
      found["connect_s"] = time.monotonic() - began
      nothing = ray.remote(num_cpus=1.0, scheduling_strategy="SPREAD")(_nothing)
      found["first_task_s"], _ = _timed(lambda: ray.get(nothing.remote()))
      ray.get([nothing.remote() for _ in range(20)])  # both nodes have a process now
      found["one_task_s"] = _timed(lambda: [ray.get(nothing.remote()) for _ in range(100)])[0] / 100
      found["task_s"] = _timed(lambda: ray.get([nothing.remote() for _ in range(1000)]))[0] / 1000
      found["share_s"], _ = _timed(lambda: ray_executor.OnRay(ray).share(portable))
  print("| what Ray costs | |\n|---|---:|")
  for name, label in _COSTS.items():
    value = f"{found[name]:,.0f}" if name.endswith("bytes") else f"{found[name]:.3g}"
    print(f"| {label} | {value} |")
  print(flush=True)
  return found


def _nothing() -> None:
  """A task that does nothing."""


def evaluate() -> None:
  """Prints how long all rows take on one node and on two."""
  from placeto_tf.evaluation import evaluate as evaluate_rows

  print(f"{FLAGS.tasks} tasks of {FLAGS.seconds:g} s each\n\n| nodes | first row s | all rows s "
        "| ratio | of the cores' time |\n|" + "---:|" * 5)
  first_s = None
  for count in (1, 2):
    ends: List[float] = []
    with _nodes(count) as (cluster, *_), _folder() as out:
      began = time.monotonic()
      evaluate_rows(_evaluation(), out, ray=cluster.address,
                    progress=lambda *_: ends.append(time.monotonic()))  # noqa: B023
    all_s = ends[-1] - began
    first_s = first_s or all_s
    print(f"| {count} | {ends[0] - began:.1f} | {all_s:.1f} | {first_s / all_s:.2f} "
          f"| {FLAGS.tasks * FLAGS.seconds / count / all_s:.2f} |", flush=True)
  print()


def train() -> Dict[str, float]:
  """Prints moves a second on one node and on two, and whether the scores are the same."""
  import numpy as np

  from placeto_tf.policies.device_pointer import training as gain_training
  from placeto_tf.policies.device_pointer.episodes import GainTrainingConfig

  config = GainTrainingConfig(
      (FLAGS.graph,), (FLAGS.cluster,), held_out=(FLAGS.graph,), watch_cluster=FLAGS.cluster,
      iterations=_FIRST + FLAGS.updates, watch_every=_FIRST + FLAGS.updates,
      checkpoint_every=_FIRST + FLAGS.updates, episodes=FLAGS.episodes)
  print(f"{FLAGS.updates} updates of {FLAGS.episodes} episodes\n\n| nodes | lag | moves/s | ratio "
        "| an update s | busy actors | held out |\n|" + "---:|" * 7)
  found: Dict[str, float] = {}
  for lag in (0, 1):
    for count in (1, 2):
      with _nodes(count) as (cluster, *_), _folder() as root_dir:
        ends: List[float] = []
        figures = gain_training.train(
            dataclasses.replace(config, lag=lag), root_dir, ray=cluster.address,
            progress=lambda *_: ends.append(time.monotonic()))  # noqa: B023
        sizes = [len(np.load(os.path.join(root_dir, "moves", f"{i:05d}.npz"))["targets"])
                 for i in range(1, config.iterations + 1)]
        weights = os.path.getsize(os.path.join(root_dir, "weights", "weights.npz"))
        moves_bytes = os.path.getsize(os.path.join(root_dir, "moves", f"{_FIRST:05d}.npz"))
      seconds = ends[-2] - ends[_FIRST - 1]  # the last update is also watched
      rate = sum(sizes[_FIRST:-1]) / seconds
      if not lag and count == 1:
        found = {"moves_a_second": rate, "moves": float(np.mean(sizes)) / FLAGS.episodes,
                 "weights_bytes": weights, "experience_bytes": moves_bytes / FLAGS.episodes}
      found.setdefault(f"lag_{lag}", rate)
      print(f"| {count} | {lag} | {rate:,.0f} | {rate / found[f'lag_{lag}']:.2f} "
            f"| {seconds / (FLAGS.updates - 1):.2f} | {figures['actors']:.0f} "
            f"| {figures['held_out_ratio']:.6f} |", flush=True)
  found["learn_s"] = _learning(config)
  print(f"\nThe learner takes {found['learn_s']:.2f} s an update; it sends "
        f"{found['weights_bytes']:,} bytes of weights an update and node, and gets "
        f"{found['experience_bytes']:,.0f} an episode of {found['moves']:,.0f} moves.\n",
        flush=True)
  return found


def _learning(config: Any) -> float:
  """Seconds that the learner takes for an update after its episodes are there."""
  from placeto_tf.policies.device_pointer.training import GainLearner
  from placeto_tf.training.trainer import Trainer

  with _folder() as root_dir:
    trainer = Trainer(GainLearner, dataclasses.replace(config, held_out=()), root_dir)
    trainer.run(until=1)
    learner = trainer.learner
    collector = learner.collector(learner.portable(None))
    collected = [collector(learner.weights, spec) for spec in learner.specs(2)]
    return _timed(lambda: [learner.learn(collected, 2) for _ in range(3)])[0] / 3


def killed() -> None:
  """Prints whether all rows are there although a node died."""
  from placeto_tf.evaluation import evaluate as evaluate_rows
  from placeto_tf.evaluation import validate

  with _nodes(2) as (cluster, nodes, _), _folder() as out:
    gone: List[float] = []
    began = time.monotonic()

    def kill_once(*_: Any) -> None:
      if not gone:
        gone.append(time.monotonic() - began)
        cluster.remove_node(nodes[0], allow_graceful=False)

    rows = evaluate_rows(_evaluation(), out, ray=cluster.address, progress=kill_once)
    seconds = time.monotonic() - began
    wrong = validate(os.path.join(out, "results.csv"))
  print(f"A node was killed after {gone[0]:.1f} s: {len(rows)} of {FLAGS.tasks} rows after "
        f"{seconds:.1f} s, {len(wrong)} that do not replay.\n", flush=True)


def paper(cost: Dict[str, float], trained: Dict[str, float]) -> None:
  """Prints what follows for many cores and graphs."""
  cores, graphs = FLAGS.cores, FLAGS.graphs
  hours = graphs * cost["problem_s"] / 3600
  gigabytes = graphs * cost["problem_bytes"] / 2**30
  episode_s, learn_s = trained["moves"] / trained["moves_a_second"], trained["learn_s"]
  experience = cores * trained["experience_bytes"]
  weights = cores * trained["weights_bytes"]
  print("\n".join([
      f"On paper, {cores:,} cores and {graphs:,} graphs like this one:\n",
      "evaluate.py",
      f"  One process makes the problems, {cost['problem_s']:.1f} s each, {hours:.1f} h in all. To "
      "keep the cores busy,",
      f"  methods x seeds x --max_seconds must be {cores * cost['problem_s']:,.0f} s or more.",
      f"  Ray takes {cost['task_s'] * 1e3:.2f} ms a task: each must last "
      f"{cores * cost['task_s']:.1f} s or more.",
      f"  The object store holds {gigabytes:.0f} GB of problems, if all are under way.",
      "train.py --policy=device_pointer",
      f"  Problems are made before the first update: {hours:.1f} h, {gigabytes:.0f} GB.",
      f"  An episode is {episode_s:.1f} s of a core: --set episodes={cores} for one an actor.",
      f"  Then {experience / 1e6:.0f} MB come back an update, {experience / _GIGABIT_S:.1f} s on a "
      "link of a gigabit a second,",
      f"  and stay in the learner's memory: {experience * 1000 / 2**30:.0f} GB in 1,000 updates.",
      f"  Weights of an update: {weights / 1e6:.0f} MB, if each actor is on a node of its own.",
      f"  The learner's own {learn_s:.2f} s an update leave actors idle for "
      f"{learn_s / (learn_s + episode_s):.0%} of the time,",
      "  and with --set lag=1 for none as long as that is less than an episode."]), flush=True)


def main() -> None:
  """Measures the parts."""
  from placeto_tf.errors import PlacetoError

  unknown = set(FLAGS.parts) - set(PARTS)
  if unknown:
    raise PlacetoError(f"--parts has {', '.join(unknown)}; expected some of {', '.join(PARTS)}")
  entry_point.import_tensorflow_quietly()
  print(f"load {os.getloadavg()[0]:.1f} at the start\n", flush=True)
  wanted = set(FLAGS.parts)
  cost = costs() if wanted & {"costs", "paper"} else {}
  if "evaluate" in wanted:
    evaluate()
  trained = train() if wanted & {"train", "paper"} else {}
  if "killed" in wanted:
    killed()
  if "paper" in wanted:
    paper(cost, trained)
  print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
  entry_point.run_program(main)
