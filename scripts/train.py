"""Trains a policy on one graph, or on a set of graphs and clusters.

  scripts/with_env python scripts/train.py --policy=device_pointer \
      --graphs='family:ptb[0:8],family:nmt[0:8],family:cifar10[0:8]' \
      --clusters='k80:4,random[2]' --held_out='family:ptb[24:26]' --root_dir=runs/pointer

  scripts/with_env python scripts/train.py --policy=placeto --graphs='family:ptb[0:24]' \
      --clusters=k80:4 --held_out='family:ptb[24:32]' --max_groups=32 --root_dir=runs/placeto

  scripts/with_env python scripts/train.py --policy=gdp --graphs=zoo:inception_v3,zoo:rnnlm \
      --clusters=k80:2,k80:4 --held_out=zoo:nmt --root_dir=runs/gdp

  scripts/with_env python scripts/train.py --policy=rnn --graphs=zoo:inception_v3 \
      --clusters=k80:4 --root_dir=runs/rnn

rnn and hierarchical are made for one graph: what is left of a run is the best placement.json.

Resumes where it stopped; done.json in --root_dir says that it is over. TensorBoard reads
ROOT_DIR/train; ROOT_DIR/weights is what --warm_start takes and inference loads.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Callable, Dict, Tuple

from absl import flags

from placeto_tf.errors import PlacetoError
from placeto_tf.programs import entry_point, shared_flags

FLAGS = flags.FLAGS

flags.DEFINE_enum("policy", "device_pointer",
                  ["device_pointer", "placeto", "gdp", "rnn", "hierarchical"], "What is trained.")
flags.DEFINE_list("graphs", None, "Graphs, comma separated: files, globs, zoo:NAME[:key=value], "
                  "family:NAME[a:b].", required=True)
flags.DEFINE_list("clusters", ["k80:4", "random[2]"], "Clusters each graph is placed on; random[3] "
                  "draws three for each graph.")
flags.DEFINE_list("held_out", [], "Graphs on which the policy is watched while it trains.")
flags.DEFINE_string("watch_cluster", "k80:4", "The cluster of the held-out graphs.")
flags.DEFINE_string("root_dir", None, "Directory of the run.", required=True)
flags.DEFINE_string("warm_start", None, "'pretrained', or a directory of weights, for a new run to "
                    "begin with.")
flags.DEFINE_list("max_groups", ["128"], "Numbers of groups, of which each problem draws one.")
flags.DEFINE_list("annealed", [], "Evaluations of annealing, each of which makes one more start of "
                  "every problem.")
flags.DEFINE_integer("max_devices", 9, "Devices at most, hosts included.", lower_bound=1)
flags.DEFINE_integer("iterations", 2000, "Updates.", lower_bound=1)
flags.DEFINE_integer("rows", 32, "Episodes (of gdp: placements of a graph) side by side.",
                     lower_bound=1)
flags.DEFINE_integer("steps", 32, "Steps an episode.", lower_bound=1)
flags.DEFINE_integer("checkpoint_every", 100, "Iterations.", lower_bound=1)
flags.DEFINE_integer("watch_every", 200, "Iterations.", lower_bound=1)
flags.DEFINE_float("learning_rate", 1e-3, "Adam's.")
flags.DEFINE_float("entropy", 0.01, "Weight of the entropy bonus.")
flags.DEFINE_float("discount", 0.0, "Of later rewards; 0 counts what a move changes at once.")
flags.DEFINE_list("without_features", [], "Device pointer: features it does not see, for "
                  "ablations: names, or 'timing' for all that only a simulation knows.")
flags.DEFINE_float("target", None, "Device pointer: the ratio held out at which training ends.")
flags.DEFINE_integer("patience", 0, "Device pointer: after so many looks at the held-out graphs "
                     "without a better ratio training ends; 0 is never.")
flags.DEFINE_integer("seed", 0, "Seed of everything random.")
# Of Placeto alone.
flags.DEFINE_bool("paper", False, "Placeto: every choice as in the paper, also those that stood in "
                  "the way of learning.")
flags.DEFINE_enum("start", "best_known",
                  ["single", "expert", "metis", "best_known", "best", "random"],
                  "Placeto: what episodes start from; best_known is the best of the three before "
                  "it, best the best met so far.")
flags.DEFINE_enum("order", "topological", ["topological", "random"],
                  "Placeto: in which order an episode visits the groups.")
flags.DEFINE_enum("reward", "intermediate", ["intermediate", "final"],
                  "Placeto: the fall of the step time at each step, or the last step time.")
flags.DEFINE_integer("rounds", 8, "Placeto: of message passing.", lower_bound=1)
flags.DEFINE_bool("start_times", True, "Placeto: whether groups' simulated times are features.")
flags.DEFINE_bool("device_scores", False, "Placeto: whether each device is also scored by what "
                  "putting the group there would mean; not in the paper.")
flags.DEFINE_bool("simple_aggregator", False, "Placeto: the paper's ablation that sums over all "
                  "groups, without message passing.")
flags.DEFINE_bool("simple_partitioner", False, "Placeto: the paper's ablation that has the three "
                  "partitions, without message passing.")
flags.DEFINE_float("final_learning_rate", 1e-4, "Placeto, gdp: the learning rate at the end.")
flags.DEFINE_float("final_entropy", 0.003,
                   "Placeto, gdp: the entropy bonus's weight at the end.")
# Of GDP alone.
flags.DEFINE_integer("graphs_per_update", 2, "GDP: an update follows the mean gradient of so many "
                     "graphs.", lower_bound=1)
flags.DEFINE_integer("segment", 128, "GDP: nodes a segment of the placer.", lower_bound=1)
flags.DEFINE_bool("superposition", True, "GDP: whether graph and cluster gate the placer's layers.")


def main() -> None:
  """Trains."""
  entry_point.import_tensorflow_quietly()
  from placeto_tf.policies.device_pointer.scorer import pretrained_directory
  from placeto_tf.training.runs import read_done

  config, train = {
      "device_pointer": _device_pointer, "placeto": _placeto, "gdp": _gdp, "rnn": _one_graph,
      "hierarchical": _one_graph}[FLAGS.policy]()
  warm_start = FLAGS.warm_start
  if warm_start == "pretrained":
    warm_start = pretrained_directory() if FLAGS.policy == "device_pointer" else None
    if warm_start is None:
      raise PlacetoError("this version ships no trained weights; give a directory to --warm_start")

  def show(iteration, figures):
    if iteration % 50 == 0 or iteration in (1, config.iterations):
      text = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
      print(f"[{iteration}/{config.iterations}] {text}", file=sys.stderr, flush=True)

  figures = train(config, FLAGS.root_dir, warm_start=warm_start, progress=show)
  text = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
  done = read_done(FLAGS.root_dir)
  print(f"Done: {done['iterations']} iterations in {FLAGS.root_dir}, {done['reason']}; {text}.",
        flush=True)


def _device_pointer() -> Tuple[Any, Callable[..., Dict[str, float]]]:
  """The configuration of a run of the device pointer, and what trains it."""
  from placeto_tf.encoding.pair_features import TIMING
  from placeto_tf.environments.moves_environment import MovesConfig
  from placeto_tf.training.pointer_training import PointerTrainingConfig, train

  max_groups, annealed = (shared_flags.whole_numbers(name) for name in ("max_groups", "annealed"))
  without = []
  for name in FLAGS.without_features:
    without += TIMING if name == "timing" else (name,)
  return PointerTrainingConfig(
      graphs=shared_flags.expand_globs(FLAGS.graphs), clusters=tuple(FLAGS.clusters),
      held_out=shared_flags.expand_globs(FLAGS.held_out), watch_cluster=FLAGS.watch_cluster,
      max_groups=max_groups, annealed=annealed, max_devices=FLAGS.max_devices,
      iterations=FLAGS.iterations, checkpoint_every=FLAGS.checkpoint_every,
      watch_every=FLAGS.watch_every, target=FLAGS.target, patience=FLAGS.patience,
      learning_rate=FLAGS.learning_rate, entropy=FLAGS.entropy, discount=FLAGS.discount,
      without=tuple(without), seed=FLAGS.seed,
      environment=MovesConfig(rows=FLAGS.rows, steps=FLAGS.steps)), train


def _placeto() -> Tuple[Any, Callable[..., Dict[str, float]]]:
  """The configuration of a run of Placeto, and what trains it."""
  from placeto_tf.training.placeto_config import PlacetoConfig
  from placeto_tf.training.placeto_training import PlacetoTrainingConfig, train

  if FLAGS.simple_aggregator and FLAGS.simple_partitioner:
    raise PlacetoError("--simple_aggregator and --simple_partitioner exclude one another")
  embedding = "simple_aggregator" if FLAGS.simple_aggregator else (
      "simple_partitioner" if FLAGS.simple_partitioner else "placeto")
  max_groups = shared_flags.whole_numbers("max_groups") if FLAGS["max_groups"].present else (48,)
  if len(max_groups) != 1:
    raise PlacetoError(f"--max_groups={','.join(FLAGS.max_groups)}: placeto takes one number")
  base = PlacetoConfig.paper() if FLAGS.paper else PlacetoConfig.family()
  anew = FLAGS.start in ("best", "random")
  placeto = dataclasses.replace(
      base,
      environment=dataclasses.replace(
          base.environment, num_episodes=_given("rows", base.environment.num_episodes),
          order=FLAGS.order, reward=FLAGS.reward, start=FLAGS.start if anew else "given"),
      network=dataclasses.replace(
          base.network, embedding=embedding, rounds=FLAGS.rounds, start_times=FLAGS.start_times,
          device_scores=FLAGS.device_scores),
      discount=_given("discount", base.discount),
      learning_rate=_given("learning_rate", base.learning_rate),
      final_learning_rate=_given("final_learning_rate", base.final_learning_rate),
      entropy=_given("entropy", base.entropy),
      final_entropy=_given("final_entropy", base.final_entropy))
  return PlacetoTrainingConfig(
      graphs=shared_flags.expand_globs(FLAGS.graphs),
      clusters=tuple(_given("clusters", ("k80:4",))),
      held_out=shared_flags.expand_globs(FLAGS.held_out), watch_cluster=FLAGS.watch_cluster,
      max_groups=max_groups[0], given="best_known" if anew else FLAGS.start,
      iterations=FLAGS.iterations, checkpoint_every=FLAGS.checkpoint_every,
      watch_every=FLAGS.watch_every, seed=FLAGS.seed, placeto=placeto), train


def _gdp() -> Tuple[Any, Callable[..., Dict[str, float]]]:
  """The configuration of a run of GDP, and what trains it."""
  from placeto_tf.methods.gdp.search import PPO
  from placeto_tf.policies.gdp.network import GdpConfig
  from placeto_tf.training.gdp_training import GdpTrainingConfig, train

  training = dataclasses.replace(
      PPO, batch_size=_given("rows", PPO.batch_size), **{
          name: _given(name, getattr(PPO, name)) for name in (
              "learning_rate", "final_learning_rate", "entropy", "final_entropy")})
  return GdpTrainingConfig(
      graphs=shared_flags.expand_globs(FLAGS.graphs),
      clusters=tuple(_given("clusters", ("k80:4",))),
      held_out=shared_flags.expand_globs(FLAGS.held_out), watch_cluster=FLAGS.watch_cluster,
      graphs_per_update=FLAGS.graphs_per_update, iterations=FLAGS.iterations,
      checkpoint_every=FLAGS.checkpoint_every, watch_every=FLAGS.watch_every, seed=FLAGS.seed,
      network=GdpConfig(
          max_devices=FLAGS.max_devices, segment=FLAGS.segment,
          superposition=FLAGS.superposition), training=training), train


def _one_graph() -> Tuple[Any, Callable[..., Dict[str, float]]]:
  """The configuration of a run of a policy made for one graph, and what trains it."""
  from placeto_tf.training.one_graph_training import POLICIES, OneGraphConfig, train

  graphs = shared_flags.expand_globs(FLAGS.graphs)
  clusters = _given("clusters", ("k80:4",))
  for name, values in (("graphs", graphs), ("clusters", clusters)):
    if len(values) != 1:
      raise PlacetoError(
          f"--{name} has {len(values)} of them; expected one: {FLAGS.policy} is made for one graph")
  base = POLICIES[FLAGS.policy][0]().training
  training = dataclasses.replace(
      base, batch_size=_given("rows", base.batch_size), **{
          name: _given(name, getattr(base, name)) for name in (
              "learning_rate", "final_learning_rate", "entropy", "final_entropy")})
  return OneGraphConfig(
      FLAGS.policy, graphs[0], clusters[0], iterations=FLAGS.iterations,
      checkpoint_every=FLAGS.checkpoint_every, seed=FLAGS.seed, training=training), train


def _given(name: str, default: Any) -> Any:
  """A flag's value where it was given: the defaults of shared flags are the device pointer's."""
  return FLAGS[name].value if FLAGS[name].present else default


def run() -> None:
  """Entry point of `placeto-train`."""
  entry_point.run_program(main)


if __name__ == "__main__":
  run()
