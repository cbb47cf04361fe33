"""Islands of a search as Ray tasks, which meet at an actor.

The same islands as on threads (`placeto_tf.search.islands`), with the same result where evaluations
are the limit. One whose node dies is run again elsewhere: where evaluations are the limit from its
seed, with the answers from the actor that it got before, otherwise from what it had found.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Sequence

from placeto_tf.distributed import tasks
from placeto_tf.distributed.session import import_ray
from placeto_tf.problem.ledger import Called
from placeto_tf.problem.placement_problem import Account, PlacementProblem
from placeto_tf.search import islands
from placeto_tf.search.islands import Answer, Exchange, Job, Rules, Watch

WATCH_SECONDS = 1.0  # how often the actor is asked how far islands are
GRACE_SECONDS = 5.0  # for islands to end by themselves, once they are to stop


class _RemoteExchange:
  """An `Exchange` that is an actor."""

  def __init__(self, ray: Any, actor: Any, waits: bool):
    self._ray, self._actor, self._waits = ray, actor, waits

  def join(self, island: int) -> Optional[Account]:
    """See `Exchange.join`."""
    try:
      return self._ray.get(self._actor.join.remote(island))
    except self._ray.exceptions.RayActorError:
      return None

  def meet(self, *args: Any) -> Answer:
    """See `Exchange.meet`; without an actor an island goes on alone, if nobody waits for it."""
    try:
      return self._ray.get(self._actor.meet.remote(*args))
    except self._ray.exceptions.RayActorError:
      if self._waits:
        raise
      return Answer(None, 0.0, False)

  def leave(self, island: int, account: Account) -> None:
    """See `Exchange.leave`."""
    try:
      self._ray.get(self._actor.leave.remote(island, account))
    except self._ray.exceptions.RayActorError:
      pass


def _run(shared: bytes, placer: Called, job: Job, actor: Any, waits: bool) -> Account:
  """The task."""
  problem: PlacementProblem = tasks.unshare(shared)
  exchange: Any = _RemoteExchange(import_ray(), actor, waits)
  return islands.run_island(problem.island_view(job.island), placer, job, exchange)


def _here(ray: Any) -> Any:
  """Has an actor be on the node of this process, which ends with it anyway."""
  from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

  return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)


def _writable(account: Account) -> Account:
  """The account with a placement that is not Ray's own: numba compiles anew for those."""
  best = account.best_placement
  return dataclasses.replace(account, best_placement=None if best is None else best.copy())


def run_on_ray(
    problem: PlacementProblem, placer: Called, jobs: Sequence[Job], rules: Rules, watch: Watch
) -> None:
  """`run_on_threads`, each job as a task wherever Ray has a core for it.

  All run at once, also where there are fewer cores than islands: they wait for one another.
  """
  ray = import_ray()
  cores = ray.cluster_resources().get("CPU", 1.0)
  # A view, for who observes the problem cannot travel.
  before, shared = problem.snapshot(), tasks.share(
      ray, problem.island_view(0).portable(with_shapes=False))
  actor = ray.remote(Exchange).options(
      num_cpus=0, max_concurrency=len(jobs) + 2, scheduling_strategy=_here(ray)).remote(rules)
  remote = tasks.remote(ray, _run, min(1.0, int(1000 * cores / len(jobs)) / 1000))
  references = {
      remote.options(name=f"island {job.island}").remote(
          shared, placer, job, actor, rules.waits): job.island for job in jobs}
  known: Dict[int, Account] = {}

  def accounts() -> List[Account]:
    try:
      known.update(ray.get(actor.accounts.remote()))
    except ray.exceptions.RayActorError:
      pass  # its node died: what was known before is kept
    return [_writable(known.get(job.island, before)) for job in jobs]

  running = list(references)
  try:
    while running:
      ended, running = ray.wait(running, timeout=WATCH_SECONDS)
      for reference in ended:
        known[references[reference]] = tasks.fetch(ray, reference)
      if watch(accounts()) and not rules.waits:
        break
  finally:
    actor.stop.remote()
    _, running = ray.wait(
        list(references), num_returns=len(references), timeout=GRACE_SECONDS)
    for reference in running:
      ray.cancel(reference, force=True)
    watch(accounts())
