"""Sound files of every kind that programs read, made by the programs, and the programs that read
them: what fuzz_inputs.py sends mutants through."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Callable, Dict, List, Tuple

import forked
import graph_mutants
import input_mutants
import shortcuts

_GRAPH = f"--graph={input_mutants.GRAPH}"
_TINY = f"zoo:{shortcuts.TINY}"
_PLACE = ("place", _GRAPH, "--max_evaluations=5", "--max_groups=8", "--method=single")
_TRAIN = ("train", f"--graphs={_TINY}", "--clusters=k80:2", "--iterations=2",
          "--checkpoint_every=1", "--root_dir={in}")
# Policy -> settings with which its training takes a moment.
SMALL_TRAINING = {
    "rnn": ("--set=batch_size=2",),
    "paper": ("--set=max_groups=6", "--set=num_episodes=2", "--set=network.rounds=1"),
    "placeto": (
        "--set=max_groups=8", "--set=steps=2", "--set=batch=32", "--set=process.rounds=1",
        "--set=evaluations=16", "--set=capacity=64", "--set=arms=32", "--set=width=8")}
_RNN = (*_TRAIN, "--policy=rnn", *SMALL_TRAINING["rnn"])
_PAPER = (*_TRAIN, "--policy=placeto", "--preset=paper", *SMALL_TRAINING["paper"])
_PLACETO = (*_TRAIN, "--policy=placeto", *SMALL_TRAINING["placeto"])
_EVALUATE = ("evaluate", f"--graphs={input_mutants.GRAPH}", "--clusters=k80:2",
             "--methods=single,expert", "--max_evaluations=5", "--out={in}")
_MAKE_GRAPHS = ("make_graphs", "--family=tiny", "--count=1", "--cluster=k80:2", "--max_groups=6",
                "--out={in}")

# Sound files, the name of the one that is changed, its content, and what was done to it.
Mutant = Tuple[input_mutants.Kind, str, bytes, str]


@dataclasses.dataclass(frozen=True)
class Input:
  """Files of one kind, and the program that reads them.

  Attributes:
    read: the command, in which {in} is the folder of the files and {out} another one.
    make: the command that writes sound ones to {in}; empty: see `files`.
    files: gives sound ones by name, where no program writes them.
    only: names of those that are changed begin with one of these; empty: all are.
    without: names of files that are taken away, and of those that are not looked at.
    anew: whether programs that are started anew can read the files, too; the shortcuts give
      recurrent policies other weights.
  """

  read: Tuple[str, ...]
  make: Tuple[str, ...] = ()
  files: Callable[[], Dict[str, bytes]] = dict
  only: Tuple[str, ...] = ()
  without: Tuple[str, ...] = ("events.out",)
  anew: bool = True


def _of_loader(name: str) -> Callable[[], Dict[str, bytes]]:
  """The files of a kind that `input_mutants` has."""
  return lambda: forked.call(lambda: input_mutants.kinds((name,))[name].files)


def _feeds() -> Dict[str, bytes]:
  def make() -> Dict[str, bytes]:
    import io

    import numpy as np

    from placeto_tf.clusters import Cluster
    from placeto_tf.graphs import load_graph
    from placeto_tf.placements import Placement

    graph, cluster = load_graph(input_mutants.GRAPH), Cluster.parse("cpu:1")
    file = io.BytesIO()
    feeds: Dict[str, Any] = {name: np.zeros(shape, np.int32)
                             for name, shape in graph.origin.feed_shapes.items()}
    np.savez(file, **feeds)
    placement = Placement.from_indices(graph, cluster, np.zeros(graph.num_ops, np.int32))
    return {"feeds.npz": file.getvalue(), **input_mutants.saved(
        lambda folder: placement.save(os.path.join(folder, "placement.json")), "placement.json")}

  return forked.call(make)


INPUTS: Dict[str, Input] = {
    "placement": Input(("simulate", _GRAPH, "--cluster=k80:2", "--placement={in}/placement.json"),
                       (*_PLACE, "--cluster=k80:2", "--out={in}"), only=("placement.json",)),
    "cluster": Input((*_PLACE, "--cluster={in}/cluster.json", "--out={out}"),
                     files=_of_loader("cluster")),
    "costs": Input((*_PLACE, "--cluster=k80:2", "--costs={in}/costs.pb", "--out={out}"),
                   files=_of_loader("costs")),
    "feeds": Input(("measure", _GRAPH, "--cluster=cpu:1", "--max_runs=6", "--warmup_runs=1",
                    "--max_seconds=1", "--feed_values={in}/feeds.npz",
                    "--placement={in}/placement.json"), files=_feeds, only=("feeds.npz",)),
    "scorer_weights": Input(
        (*_PLACE[:-1], "--method=placeto", "--cluster=k80:2", "--policy_weights={in}",
         "--out={out}"), files=_of_loader("scorer_weights")),
    "published_weights": Input(
        ("place", f"--graph={_TINY}", "--max_evaluations=5", "--max_groups=6",
         "--method=placeto_paper_zero_shot", "--cluster=k80:2", "--policy_weights={in}",
         "--out={out}"),
        _PAPER, only=("weights/",), without=("events.out", "train/", "policies/")),
    "run": Input(_RNN, _RNN, without=("events.out", "done.json"), anew=False),
    "run_with_buffer": Input(_PLACETO, _PLACETO, without=("events.out", "done.json")),
    "results": Input(("evaluate", "--validate={in}/results.csv"), _EVALUATE,
                     without=("events.out", "png")),
    "evaluation": Input(_EVALUATE, _EVALUATE, without=("events.out", "png")),
    "study": Input(("study", "--study={in}/study.json", "--out={in}", "--summary"),
                   files=_of_loader("study")),
    "manifest": Input((*_PLACE, "--cluster=k80:2", "--out={in}"),
                      (*_PLACE, "--cluster=k80:2", "--out={in}")),
    "graph_set": Input(_MAKE_GRAPHS, _MAKE_GRAPHS),
    **{format: Input(
        (*_PLACE, "--cluster=k80:2", "--batch_size=2", "--out={out}",
         f"--graph={{in}}/{'' if format == 'saved_model' else graph_mutants.FILES[format]}"))
       for format in graph_mutants.FORMATS},
}


def filled(command: Tuple[str, ...], files: str, out: str) -> List[str]:
  """A command with its folders."""
  return [part.replace("{in}", files).replace("{out}", out) for part in command]


def sound(given: Input, scripts: str, folder: str, prepare: Callable[[], None]
          ) -> input_mutants.Kind:
  """Makes the sound files of a kind in an empty folder; `prepare` is for `forked.Program`.

  Raises:
    RuntimeError: the program that is to make them failed.
  """
  files = given.files()
  if given.make:
    where = os.path.join(folder, "made")
    os.mkdir(where)
    ended = forked.Program(scripts, filled(given.make, where, ""), os.path.join(folder, "run"),
                           prepare=prepare).finish(600.0)
    if ended.code != 0:
      raise RuntimeError(f"{given.make[0]} ended with {ended.code}: {ended.said[-2000:]}")
    files = forked.tree(where, given.without)
  return input_mutants.Kind(files, lambda _: None)


def mutants(name: str, kind: input_mutants.Kind, seed: int, numbers: List[int]) -> List[Mutant]:
  """The mutants of these numbers."""
  if name in graph_mutants.FORMATS:
    first, count = graph_mutants.FORMATS.index(name), len(graph_mutants.FORMATS)
    file = graph_mutants.FILES[name]

    def make() -> List[Tuple[bytes, str]]:
      found = [graph_mutants.mutant(seed, first + count * number) for number in numbers]
      return [(content, done) for _, content, _, done in found]

    return [(input_mutants.Kind({file: b""}, lambda _: None), file, content, done)
            for content, done in forked.call(make)]
  changed = input_mutants.Kind(
      {file: content for file, content in kind.files.items()
       if not INPUTS[name].only or file.startswith(INPUTS[name].only)}, kind.load)
  return [(kind, *input_mutants.mutant(changed, seed, number)) for number in numbers]


def of(names: List[str]) -> Dict[str, Any]:
  """The kinds of these names, or all."""
  return {name: INPUTS[name] for name in names or INPUTS if name in INPUTS}
