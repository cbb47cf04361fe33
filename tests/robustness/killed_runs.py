"""Programs that are killed at random moments and started again: what has to hold afterwards.

A case is a command that works in a directory, and what of the directory is the same each time it is
run. It is run once to its end, on a copy of what it starts from; then, for each trial, it is
started, killed and started again until it ends, and its results are compared.

After every kill:
  - no process that the program had started is left, a moment later, and no port it listened on;
  - it printed no traceback; where the signal could be heard, no temporary file is left;
  - what an earlier run had published is there, whole: the old results, or the new ones.
After the last run:
  - what is promised to be equal is equal to the bit;
  - nothing is left of the runs that were killed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
from typing import Callable, Collection, Dict, List, Mapping, Sequence, Tuple

import campaigns
import forked
import input_mutants
import program_inputs
import shortcuts

from placeto_tf.graphs import result_directory

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_MOST_KILLS = 3  # of one trial, before the run that comes to its end
_LIMIT_S = 1800.0
GONE_S = 20.0  # for what a killed program had started to end as well
_GRAPH = f"--graph={input_mutants.GRAPH}"
_TINY = f"zoo:{shortcuts.TINY}"

Files = Dict[str, bytes]


def _same(files: Files) -> Files:
  return files


def _of_names(*ends: str) -> Callable[[Files], Files]:
  """The files whose paths end like that."""
  return lambda files: {path: files[path] for path in files if path.endswith(ends)}


def _placed(files: Files) -> Files:
  """What place.py writes, without how long it took."""
  return _of_names("placement.json", "graph.pb", "graph.meta", "timeline.json")(files)


def _trained(files: Files) -> Files:
  """Weights and placements, and how a run ended but for its speed."""
  found = _of_names("weights.npz", "placement.json", "config.json")(files)
  done = json.loads(files["done.json"])
  done["figures"] = {name: value for name, value in done["figures"].items() if "second" not in name}
  return {**found, "done.json": json.dumps(done, sort_keys=True).encode()}


def _evaluated(files: Files) -> Files:
  """Placements, and the rows but for their seconds, of which digests speak too."""
  rows = [line.split(",") for line in files["results.csv"].decode().splitlines()]
  dropped = {rows[0].index("seconds"), rows[0].index("digest")}
  lines = sorted(",".join(cell for i, cell in enumerate(row) if i not in dropped) for row in rows)
  return {**{path: content for path, content in files.items() if path.startswith("placements/")},
          "results.csv": "\n".join(lines).encode()}


def _studied(files: Files) -> Files:
  """What was predicted, and of which placements there are measurements."""
  found = {path: content for path, content in files.items()
           if path.endswith("predicted.json") or "/placements/" in path}
  for path in files:
    if path.endswith("measured.jsonl"):
      rows = [json.loads(line) for line in files[path].decode().splitlines() if line.strip()]
      found[path] = "\n".join(sorted({row["placement"] for row in rows})).encode()
  return found


@dataclasses.dataclass(frozen=True)
class Case:
  """A program that may be killed.

  Attributes:
    command: in which {out} stands for its directory.
    compared: of the files of the directory those parts that are the same each time.
    earlier: a command that publishes results to the directory beforehand; empty: none does.
    resumes: whether it goes on where it stopped; else it begins again.
    files: gives what is in the directory beforehand, by name.
  """

  command: Tuple[str, ...]
  compared: Callable[[Files], Files] = _same
  earlier: Tuple[str, ...] = ()
  resumes: bool = True
  files: Callable[[], Mapping[str, bytes]] = dict


def _train(policy: str, iterations: int, *settings: str) -> Case:
  return Case(("train", f"--policy={policy}", f"--graphs={_TINY}", "--clusters=k80:2",
               f"--iterations={iterations}", "--checkpoint_every=1",
               "--root_dir={out}", *settings), _trained)


def _study_files() -> Dict[str, bytes]:
  """A study whose workers are calibrated: that alone takes minutes."""

  def make() -> Dict[str, bytes]:
    import numpy as np

    from placeto_tf.graphs import load_graph
    from placeto_tf.runtime import calibrating, study

    graph, cluster = load_graph(_TINY), study.worker_cluster(2)

    def save(folder: str) -> None:
      cluster.save(os.path.join(folder, "cluster.json"))
      calibrating.write_costs(
          graph, cluster, np.full((graph.num_ops, 2), 20.0), os.path.join(folder, "costs.pb"))

    inner = study.graph_directory("", _TINY)
    calibration = input_mutants.saved(save, "cluster.json", "costs.pb")
    return {
        "study.json": json.dumps({
            "graphs": [_TINY], "placements": 6, "near_best": 0, "repeats": 1, "max_runs": 8,
            "max_seconds": 0.2, "search_seconds": 1e-6}).encode(),
        f"{inner}/core_speed.json": json.dumps({"full_speed_us": 1000.0}).encode(),
        **{f"{inner}/calibration/{name}": content for name, content in calibration.items()}}

  return forked.call(make)


def _measure_files() -> Dict[str, bytes]:
  def make() -> Dict[str, bytes]:
    import numpy as np
    import prediction_study as study

    from placeto_tf.graphs import load_graph
    from placeto_tf.placements import Placement

    graph, cluster = load_graph(_TINY), study.worker_cluster(2)
    placement = Placement.from_indices(graph, cluster, np.zeros(graph.num_ops, np.int32))

    def save(folder: str) -> None:
      cluster.save(os.path.join(folder, "cluster.json"))
      placement.save(os.path.join(folder, "placement.json"))

    return input_mutants.saved(save, "cluster.json", "placement.json")

  return forked.call(make)


_PLACE = ("place", _GRAPH, "--cluster=k80:2", "--max_groups=8", "--out={out}", "--method=annealing")
CASES: Dict[str, Case] = {
    "place": Case((*_PLACE, "--max_evaluations=400", "--seed=2"), _placed,
                  (*_PLACE, "--max_evaluations=20", "--seed=1"), resumes=False),
    "train rnn": _train("rnn", 4, *program_inputs.SMALL_TRAINING["rnn"]),
    "train hierarchical": _train("hierarchical", 4, "--set=batch_size=2"),
    "train paper": _train(
        "placeto", 2, "--preset=paper", *program_inputs.SMALL_TRAINING["paper"]),
    "train placeto": _train(
        "placeto", 4, *program_inputs.SMALL_TRAINING["placeto"]),
    "train gdp": _train(
        "gdp", 2, "--set=max_devices=3", "--set=segment=32", "--set=batch_size=2", "--set=width=8",
        "--set=rounds=1", "--set=layers=1", "--set=heads=2"),
    "evaluate": Case((
        "evaluate", f"--graphs={input_mutants.GRAPH}", "--clusters=k80:2", "--max_evaluations=60",
        "--methods=single,annealing,local_search", "--seeds=0,1", "--max_groups=8", "--out={out}"),
                     _evaluated),
    "measure": Case((
        "measure", f"--graph={_TINY}", "--cluster={out}/cluster.json", "--max_runs=6",
        "--warmup_runs=1", "--max_seconds=0.5", "--placement={out}/placement.json"),
                    resumes=False, files=_measure_files),
    "study": Case(("study", "--study={out}/study.json", "--out={out}"), _studied,
                  files=_study_files),
    "make_graphs": Case((
        "make_graphs", "--family=tiny", "--count=3", "--cluster=k80:2", "--max_groups=6",
        "--out={out}")),
}


class Reference:
  """A case that was run to its end.

  Attributes:
    before: the files it starts from.
    compared: what of its results is the same each time.
    seconds: that it took, or a faster run since.
  """

  def __init__(self, case: Case, scripts: str, folder: str, prepare: Callable[[], None]):
    """Runs it. Raises: RuntimeError: it failed."""
    self.case, self._scripts, self._prepare = case, scripts, prepare
    out = os.path.join(folder, "out")
    os.makedirs(out)
    _write(out, case.files())
    if case.earlier:
      self._whole(case.earlier, out, os.path.join(folder, "earlier"))
    self.before = forked.tree(out)
    ended = self._whole(case.command, out, os.path.join(folder, "whole"))
    self.compared, self.seconds = case.compared(forked.tree(out)), ended.seconds
    shutil.rmtree(folder)

  def _whole(self, command: Sequence[str], out: str, folder: str) -> forked.Ended:
    ended = self.start(command, out, folder).finish(_LIMIT_S)
    if ended.code != 0:
      raise RuntimeError(f"{command[0]} ended with {ended.code}: {ended.said[-2000:]}")
    return ended

  def start(self, command: Sequence[str], out: str, folder: str) -> forked.Program:
    """Starts a command on a directory."""
    return forked.Program(self._scripts, program_inputs.filled(tuple(command), "", out), folder,
                          prepare=self._prepare)


def trial(name: str, reference: Reference, seed: int, number: int, folder: str) -> campaigns.Trial:
  """Kills a case at random moments, and lets it come to its end; what was wrong, or "equal"."""
  rng = random.Random(f"{seed}/{name}/{number}")
  case, out = reference.case, os.path.join(folder, "out")
  os.makedirs(out)
  _write(out, reference.before)
  wrong: List[str] = []
  kills: List[str] = []
  for attempt in range(rng.choice((1, 1, 2, _MOST_KILLS))):
    number_of_signal = rng.choice(SIGNALS)
    moment_s = rng.random() * reference.seconds
    run = reference.start(case.command, out, os.path.join(folder, f"killed_{attempt}"))
    ended = run.wait(moment_s)
    if ended is None:
      ports = run.listening()
      run.send(number_of_signal)
      kills.append(number_of_signal.name)
      ended = run.finish(_LIMIT_S)
      wrong += _after_kill(run, ended, number_of_signal, ports, case, reference, out)
    if ended.code == 0:  # it was faster than the reference, or at its end when it was killed
      reference.seconds = min(reference.seconds, ended.seconds)
      break
  run = reference.start(case.command, out, os.path.join(folder, "last"))
  ended = run.finish(_LIMIT_S)
  if ended.code != 0 or ended.has_traceback:
    wrong.append(f"started again it ended with {ended.code}: {ended.last_line}")
  else:
    wrong += _after_end(run, reference, out)
  return {"kind": name, "number": number, "outcome": "wrong" if wrong else "equal",
          "text": "; ".join(wrong)[:1000], "signals": kills, "seconds": round(ended.seconds, 3)}


def _after_kill(
    run: forked.Program, ended: forked.Ended, number: signal.Signals, ports: Dict[int, str],
    case: Case, reference: Reference, out: str) -> List[str]:
  """What is wrong once a killed program is gone."""
  wrong = []
  when = f"after {number.name}"
  if ended.code is None:
    wrong.append(f"{when} it did not end")
  if ended.has_traceback:
    wrong.append(f"{when} it printed a traceback: {ended.last_line}")
  left = _left(run, ports)
  if left:
    wrong.append(f"{when} there are still {', '.join(left.values())}")
  if number != signal.SIGKILL and _temporary(run):
    wrong.append(f"{when} temporary files are left: {', '.join(_temporary(run))}")
  if case.earlier:
    wrong += _published(reference, out, when, interrupted=ended.code == 0)
  return wrong


def _published(reference: Reference, out: str, when: str, interrupted: bool) -> List[str]:
  """What is wrong with the results of a directory where a run was killed that was to replace them.

  `interrupted`: the run ended well, with what it had found by then.
  """
  # The next run in the directory, whichever it is, sees to what was being moved.
  with result_directory.ResultDirectory(out):
    pass
  files = forked.tree(out)
  manifest = json.loads(files[result_directory.MANIFEST])["files"]
  absent = sorted(set(manifest) - set(files))
  if absent:
    return [f"{when} {absent[0]} is missing of the results"]
  old = {path: files.get(path) for path in reference.before} == reference.before
  new = reference.case.compared(files) == reference.compared
  if not (old or new or interrupted):
    return [f"{when} the results are neither the old ones nor the new ones"]
  left = [name for name in os.listdir(out) if name.startswith(".partial")]
  return [f"{when} {left[0]} is left"] if left else []


def _after_end(run: forked.Program, reference: Reference, out: str) -> List[str]:
  """What is wrong with the results of a run that came to its end."""
  wrong = []
  files = forked.tree(out)
  compared = reference.case.compared(files)
  differ = sorted(path for path in {*compared, *reference.compared}
                  if compared.get(path) != reference.compared.get(path))
  if differ:
    wrong.append(f"{', '.join(differ[:5])} differ from those of a run that was not killed")
  left = [path for path in forked.listing(out) if _is_unfinished(path)]
  if left:
    wrong.append(f"{', '.join(left[:5])} are left")
  if _temporary(run):
    wrong.append(f"temporary files are left: {', '.join(_temporary(run))}")
  still = _left(run)
  if still:
    wrong.append(f"there are still {', '.join(still.values())}")
  return wrong


def _is_unfinished(path: str) -> bool:
  """Whether a path is that of something on its way: partial, temporary or written beside."""
  name = os.path.basename(path)
  return name.startswith((".partial", ".unfinished")) or "_temp" in name or name.endswith(
      (".partial", ".tmp")) or ".tempstate" in name


def _temporary(run: forked.Program) -> List[str]:
  """Temporary files that a program left, but for what TensorFlow removes by `atexit`."""
  return [name for name in os.listdir(run.temporary)
          if not name.startswith(("__autograph_generated_file", "__pycache__"))]


def _left(run: forked.Program, ports: Collection[int] = ()) -> Dict[int, str]:
  """Processes that a program started, and its ports, that are not gone within a moment."""

  def look() -> Dict[int, str]:
    open_ports = forked.listening().items() if ports else ()
    return {**run.left(), **{socket: port for socket, port in open_ports if socket in ports}}

  return forked.settled(look, GONE_S)


def _write(out: str, files: Mapping[str, bytes]) -> None:
  for path, content in files.items():
    target = os.path.join(out, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
      file.write(content)
