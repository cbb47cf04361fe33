"""`Learner`: the policy's part of a training run; `trainer.Trainer` does the rest.

A learner samples specs; collectors, in this process or in actors on Ray, turn a spec and weights
into experience; the learner learns from the experience. A collector's result depends on weights and
spec alone, so the number of collectors, and their earlier work, make no difference.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import numpy as np
import tensorflow as tf

from placeto_tf.errors import PlacetoError
from placeto_tf.training.collecting import Maker


@dataclasses.dataclass(frozen=True, eq=False)
class Spec:
  """Everything besides weights on which experience depends.

  Attributes:
    graph: number of the problem.
    seed: of all samples.
    start: where episodes begin, such as the number of one of the problem's starts, or a placement;
      None for policies that begin from nothing.
  """

  graph: int
  seed: int
  start: Any = None


class Learner:
  """Base class; methods that every learner must define raise NotImplementedError here.

  Attributes:
    rate: the name of the figure for the policy's speed.
    config, root_dir: of the run.
    problems: `num_training` problems to train on, then the held-out problems.
    rng: of all samples; checkpoints hold its state.
    tracked: name -> object that checkpoints hold, for `tf.train.Checkpoint`; "network" and
      "optimizer" have the variables that an update changes.
    at_once: the number of specs of an update.
    collector: the maker of collectors of `portable` problems, here or in an actor.
  """

  rate = "steps_a_second"
  tracked: Dict[str, Any]
  at_once = 1
  collector: Maker

  def __init__(
      self, config: Any, root_dir: str, *, problems: Optional[Sequence[Any]] = None,
      held_out: Sequence[Any] = (), progress: Callable[[int, Any], None] = lambda *_: None):
    """Makes the problems that `config` names, unless `problems` and `held_out` are given.

    Args:
      config: of the run.
      root_dir: of the run.
      problems: problems to train on, instead of those that `config` names.
      held_out: held-out problems, on which the policy is evaluated; only with `problems`.
      progress: called with 0 and {"problems": the number of problems made so far}.

    Raises:
      PlacetoError: a graph or cluster is wrong, or there is no problem to train on.
    """
    self.config, self.root_dir = config, root_dir
    numbers = itertools.count(1)

    def made(graphs: Sequence[str], clusters: Sequence[str]) -> Iterator[Any]:
      for problem in self.make_problems(graphs, clusters):
        progress(0, {"problems": next(numbers)})
        yield problem

    if problems is None:
      problems = list(made(config.graphs, config.clusters))
      held_out = list(made(config.held_out, (config.watch_cluster,)))
    if not problems:
      raise PlacetoError("there is no problem to train on; give graphs and clusters")
    self.problems, self.num_training = [*problems, *held_out], len(problems)
    self.rng = np.random.default_rng(config.seed)

  def make_problems(self, graphs: Sequence[str], clusters: Sequence[str]) -> Iterator[Any]:
    """Makes a problem for each graph on each of its clusters.

    Args:
      graphs: specs of graphs.
      clusters: specs of clusters.

    Yields:
      The problems, graph after graph.
    """
    raise NotImplementedError

  # Collecting experience.

  def specs(self, iteration: int) -> Sequence[Any]:
    """Samples the specs of an update's experience; `iteration` counts from 1."""
    return [Spec(graph, int(self.rng.integers(2**31))) for graph in self.turn(iteration)]

  def portable(self, num_threads: Optional[int]) -> Sequence[Any]:
    """Returns the problems for collectors, simulating on `num_threads`; None: as many as here."""
    raise NotImplementedError

  @property
  def weights(self) -> Any:
    """Returns the weights that collectors are given."""
    return [variable.numpy() for variable in self.tracked["network"].variables]

  # Learning from it.

  @property
  def variables(self) -> List[tf.Variable]:
    """Returns all variables that an update changes."""
    return [*self.tracked["network"].variables, *self.tracked["optimizer"].variables]

  def learn(self, experiences: List[Any], iteration: int) -> Dict[str, float]:
    """Updates the policy from the experience of each spec.

    If the result is empty, or a figure is not finite, the trainer undoes the update.

    Args:
      experiences: one per spec of the update, in the order of the specs.
      iteration: number of the update, from 1 on.

    Returns:
      Name -> figure to be shown; and "steps", the amount of work in the experience, for `rate`.
    """
    raise NotImplementedError

  def tried(self, number: int) -> Dict[str, float]:
    """Tries the policy on a held-out problem.

    Returns:
      Name -> ratio of the policy's step time (with the memory penalty) to another one.
    """
    raise NotImplementedError

  def watch(self) -> Dict[str, float]:
    """Returns the geometric means of `tried` over the held-out problems; there must be some."""
    found = [self.tried(number) for number in self.held_out]
    return {f"held_out_{name}": float(np.exp(np.mean(np.log([each[name] for each in found]))))
            for name in found[0]}

  # Checkpoints and files.

  def state(self) -> Dict[str, Any]:
    """Returns the state that a resume needs besides `tracked`: numbers and text."""
    return {"rng": self.rng.bit_generator.state}

  def load_state(self, state: Dict[str, Any]) -> None:
    """Restores a `state`; the objects of `tracked` were restored before."""
    self.rng.bit_generator.state = state["rng"]

  def export(self, directory: str, **notes: Any) -> None:
    """Writes the weights for inference.

    Args:
      directory: of the weights.
      **notes: iteration and configuration, for the description of the weights.
    """
    raise NotImplementedError

  def finish(self) -> None:
    """Writes further files when the run is over."""

  # For subclasses.

  def turn(self, iteration: int) -> List[int]:
    """Returns the numbers of the training problems of an update, `at_once` of them.

    All take turns, in a new order each pass, none twice at once. Turns depend on the seed alone, so
    that resuming needs no state. `iteration` counts from 1.
    """
    # Update n takes positions (n - 1) P to n P of the concatenated orders of all laps (passes).
    p, c = self.at_once, self.num_training
    turn: List[int] = []
    place = (iteration - 1) * p
    while len(turn) < p:
      lap, at = divmod(place, c)
      graph = int(np.random.default_rng([self.config.seed, lap]).permutation(c)[at])
      # Across two laps a graph may come up twice; its second turn is skipped.
      if graph not in turn:
        turn.append(graph)
      place += 1
    return turn

  @property
  def held_out(self) -> range:
    """Returns the numbers of the problems that are held out."""
    return range(self.num_training, len(self.problems))
