"""Trains a policy on a set of graphs and clusters.

  scripts/with_env python scripts/train.py --policy=placeto \\
      --graphs='family:ptb[0:8],family:nmt[0:8],family:cifar10[0:8]' \\
      --clusters='k80:4,random[1]' --held_out='family:ptb[24:26]' --root_dir=runs/placeto

  scripts/with_env python scripts/train.py --policy=placeto --preset=paper \\
      --graphs='family:ptb[0:24]' --held_out='family:ptb[24:32]' --set max_groups=32 \\
      --root_dir=runs/paper

  scripts/with_env python scripts/train.py --policy=gdp --graphs=zoo:inception_v3,zoo:rnnlm \\
      --clusters=k80:2,k80:4 --held_out=zoo:nmt --root_dir=runs/gdp

  scripts/with_env python scripts/train.py --policy=placeto --graphs='family:ptb[0:8]' \\
      --set episodes=8 --root_dir=runs/placeto --ray=auto

rnn and hierarchical are made for one graph: place.py --method=rnn trains them on this graph.

--set changes any other field of the policy's configuration; the fields are listed below, with their
defaults. The last parts of a name are enough if only one field has them.

With --ray actors collect experience and this process learns. The fields episodes (placeto),
num_episodes (its preset paper) and graphs_per_update (gdp) set the number of pieces into which an
update's experience is divided. Neither the number of actors nor --ray changes the result, and both
may change when a run is resumed.

Resumes where it stopped; done.json in --root_dir is written at the end. TensorBoard
reads ROOT_DIR/train; --warm_start and inference read ROOT_DIR/weights.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List, Mapping

import tqdm
from absl import flags

from placeto_tf import policies
from placeto_tf.errors import PlacetoError, SetupError
from placeto_tf.programs import entry_point, shared_flags

FLAGS = flags.FLAGS

# Figures of each update that are printed; TensorBoard has all figures.
_SHOWN = ("over_single", "last", "best", "loss", "reward", "entropy", "steps_a_second",
          "placements_a_second")
# Flags that are fields of every policy's configuration, whose defaults are the configuration's.
_FIELDS = (
    "graphs", "clusters", "held_out", "iterations", "checkpoint_every", "watch_every", "seed",
    "timing", "workers")

flags.DEFINE_string("policy", "placeto", f"Policy to train: {', '.join(policies.trainable())}, "
                    "or a policy of --import.")
flags.DEFINE_list("graphs", None, "Graphs, comma separated: files, globs, zoo:NAME[:key=value], "
                  "family:NAME[a:b].", required=True)
flags.DEFINE_list("clusters", None, "Clusters that each graph is placed on, comma separated. "
                  "placeto and gdp: random[3] samples three clusters for each graph.")
flags.DEFINE_list("held_out", None, "Graphs that do not train the policy, on which it is tried "
                  "every --watch_every iterations, and every 10 in a short run.")
flags.DEFINE_string("root_dir", None, "Directory of the run.", required=True)
flags.DEFINE_string("warm_start", None, "First weights of a new run: 'pretrained' (those that "
                    "ship), or a directory of weights. Default: random weights.")
flags.DEFINE_integer("iterations", None, "Updates of the weights.", lower_bound=1)
flags.DEFINE_integer("checkpoint_every", None, "Iterations between two checkpoints.", lower_bound=1)
flags.DEFINE_integer("watch_every", None, "Iterations between two tries on --held_out.",
                     lower_bound=1)
flags.DEFINE_integer("seed", None, "Seed of weights, samples and clusters.",
                     lower_bound=0, upper_bound=2**32 - 1)
flags.DEFINE_string("preset", None, "Of --policy=placeto: 'paper', the published process. Default: "
                    "the process of the weights that ship.")
flags.DEFINE_enum("timing", None, ["simulated", "session"], "Step times of the rewards: simulated, "
                  "or of real steps on --workers, each placement timed once.")
flags.DEFINE_list("workers", None, "Addresses of workers for --timing=session, or local:N.")
shared_flags.define_ray_flag()
shared_flags.define_import_flag()
flags.DEFINE_integer("actors", None, "Actors on Ray that collect experience; default: one for each "
                     "core of --ray, or as many as can work at a time.", lower_bound=1)
flags.DEFINE_multi_string("set", [], "field=value of the policy's configuration; repeatable.")


def main() -> None:
  """Trains."""
  entry_point.import_tensorflow_quietly()
  from placeto_tf import agents
  from placeto_tf.training.runs import read_done
  from placeto_tf.training.trainer import watched_every

  shared_flags.import_policies()
  fields, settings = _given(), _settings()
  config = agents.find_trainable(FLAGS.policy, FLAGS.preset).configure(fields, settings)
  with tqdm.tqdm(total=config.iterations, file=sys.stderr, disable=not sys.stderr.isatty(),
                 unit="update", dynamic_ncols=True) as bar:
    bar.set_description_str("making problems and evaluating the start")
    if bar.disable:
      print("Making problems and evaluating the start, which may take minutes ...",
            file=sys.stderr, flush=True)

    def show(iteration: int, figures: Mapping[str, float]) -> None:
      if not iteration:
        if figures["problems"] % 10 == 0:
          bar.write(f"{figures['problems']} problems made.", file=sys.stderr)
        return
      # The first call; `bar.n` counts nothing where the bar is not shown.
      if bar.desc != "training" and iteration - 1 > figures.get("skipped", 0):
        bar.write(f"The run goes on after iteration {iteration - 1}.", file=sys.stderr)
      bar.set_description_str("training", refresh=False)
      bar.update(iteration - bar.n)
      if iteration % watched_every(config) == 0 or iteration in (1, config.iterations):
        bar.write(f"[{iteration}/{config.iterations}] {_text(figures)}", file=sys.stderr)

    figures = agents.train(
        fields.pop("graphs"), FLAGS.root_dir, policy=FLAGS.policy, preset=FLAGS.preset,
        warm_start=FLAGS.warm_start, settings=settings, progress=show, ray=FLAGS.ray,
        actors=FLAGS.actors, **fields)
  done = read_done(FLAGS.root_dir)
  print(f"Done: {done['iterations']} iterations in {FLAGS.root_dir}, {done['reason']}; "
        f"{_text(figures)}.", flush=True)
  if os.path.exists(os.path.join(FLAGS.root_dir, "weights")):
    print(f"To place with it: placeto-place --policy_weights={FLAGS.root_dir} --graph=G "
          f"--cluster=C --method={'placeto_paper' if FLAGS.preset else FLAGS.policy}")
  print(f"Its curves: tensorboard --logdir={os.path.join(FLAGS.root_dir, 'train')}", flush=True)


def _text(figures: Mapping[str, float]) -> str:
  """Returns the main figures of training as text, figures on held-out graphs first."""
  chosen = {name: value for name, value in figures.items() if name.startswith("held_out")}
  chosen.update({name: figures[name] for name in _SHOWN if name in figures})
  return ", ".join(f"{name} {value:.4g}" for name, value in chosen.items())


def _given() -> Dict[str, Any]:
  """Field -> value of the flags that were given."""
  found: Dict[str, Any] = {
      name: FLAGS[name].value for name in _FIELDS if FLAGS[name].value is not None}
  for name in ("graphs", "held_out"):
    if name in found:
      found[name] = shared_flags.expand_globs(found[name])
  for name in {"clusters", "workers"} & set(found):
    found[name] = tuple(found[name])
  return found


def _settings() -> List[str]:
  """The settings of --set; refuses fields that have a flag of their own."""
  settings: List[str] = FLAGS["set"].value or []
  for setting in settings:
    name = setting.partition("=")[0].strip()
    if name in _FIELDS + ("policy",):
      raise PlacetoError(f"--set {setting}: {name} has a flag of its own; write --{name} instead")
  return settings


def fields_help() -> str:
  """The fields of the configurations of all policies, with their defaults."""
  entry_point.import_tensorflow_quietly()
  try:
    from placeto_tf.training import settings as settings_lib

    known = {name: load() for name, load in policies.trainable().items()}
    known.update({f"{name}, preset {preset}": record for name, policy in list(known.items())
                  for preset, record in policy.presets.items()})
  except SetupError as error:
    return str(error)
  sections = []
  for name, policy in known.items():
    lines = [f"Fields for --policy={name} (--set field=value), with their defaults:"]
    for line in settings_lib.describe(policy.config):
      field = line.partition("=")[0]
      if field in _FIELDS:
        line = f"--{line}"
      if field not in ("graphs", "policy"):
        lines.append(f"  {line}")
    sections.append("\n".join(lines))
  return "\n\n".join(sections)


def run() -> None:
  """Entry point of `placeto-train`."""
  entry_point.run_program(main, more_help=fields_help)


if __name__ == "__main__":
  run()
