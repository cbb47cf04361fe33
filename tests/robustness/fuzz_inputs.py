"""Feeds mutated files to the loaders, and to the programs; reports what they must never do.

  scripts/with_env python tests/robustness/fuzz_inputs.py --mutants=5000 --programs=300 \\
      --log=fuzz.jsonl

--mutants of each kind of file beside graphs are read by its loader (fuzz_graphs.py has graphs), and
--programs of each kind, graphs included, go through the program that reads it, in forks of this
process that take shortcuts (shortcuts.py); the first --anew of them are also
started as a user would, and have to end with the same code and the same words. Never may one raise
anything but the package's own errors, in one sentence, take more than 30 seconds of CPU time, or
more than 2 GB of memory above what a sound file takes; and where a program fails, its files and its
--out must stay as they were. A mutant is a function of the seed and its number. Stopped midway, the
same command goes on where --log ends; --kinds and --first play single ones again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import signal
import sys
import tempfile
import time
from typing import Callable, Dict, Iterator, List, Optional, Tuple

import campaigns
import forked
import input_mutants
import program_inputs
import shortcuts
from absl import app, flags

from placeto_tf.errors import PlacetoError

FLAGS = flags.FLAGS

flags.DEFINE_integer("mutants", 5_000, "Of each kind, for its loader.", lower_bound=0)
flags.DEFINE_integer("programs", 300, "Of each kind, for its program.", lower_bound=0)
flags.DEFINE_integer("anew", 10, "Of each kind of --programs, to be started anew as well.",
                     lower_bound=0)
flags.DEFINE_integer("first", 0, "Number of the first one.", lower_bound=0)
flags.DEFINE_integer("seed", 0, "Seed of all of them.", lower_bound=0)
flags.DEFINE_list("kinds", [], "Kinds of files; default: all.")
flags.DEFINE_string("log", None, "File that keeps the outcomes, to go on from.")

_LIMIT_S = 30  # of CPU time
_HANG_S = 600.0  # by the clock, for what waits and uses no CPU time
_LIMIT_KB = 2 * 2**20  # 2 GB
_OUTCOMES = ("loaded", "refused", "raised", "crashed", "hung", "memory", "changed",
             "differs")
_SOUND = ("loaded", "refused")
_BLOCK = 100


def _trial(kind: str, number: int, outcome: str, text: str, seconds: float) -> campaigns.Trial:
  return {"kind": kind, "number": number, "outcome": outcome, "text": text[:400],
          "seconds": round(seconds, 3)}


def load_all(kind: str, numbers: List[int]) -> Iterator[campaigns.Trial]:
  """Reads the mutants of a kind, in forks that go on where one was lost."""
  todo = list(numbers)
  while todo:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
      with contextlib.suppress(BaseException):
        os.close(reader)
        _load_some(kind, todo, writer)
      os._exit(0)
    os.close(writer)
    before = len(todo)
    with os.fdopen(reader, encoding="utf-8") as lines:
      for line in lines:
        outcome, text, seconds = line.rstrip("\n").split("\t")
        yield _trial(kind, todo.pop(0), outcome, text, float(seconds))
    _, status = os.waitpid(child, 0)
    if todo:
      code = os.waitstatus_to_exitcode(status)
      if len(todo) == before == len(numbers) and code == 0:
        raise PlacetoError(f"mutants of {kind} cannot be made; look at input_mutants.py")
      lost = "hung" if code in (-signal.SIGXCPU, -signal.SIGALRM) else "crashed"
      yield _trial(kind, todo.pop(0), lost, f"status {code}", _LIMIT_S)


def _load_some(kind: str, numbers: List[int], writer: int) -> None:
  made = input_mutants.kinds((kind,))[kind]
  hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
  with tempfile.TemporaryDirectory() as folder:
    for number in numbers:
      name, content, done = input_mutants.mutant(made, FLAGS.seed, number)
      input_mutants.clear(folder)
      input_mutants.write(made, folder, name, content, done)
      before_kb, started = _peak_kb(), time.process_time()
      # Both end this process: a loop by its CPU time, what waits by the clock.
      resource.setrlimit(resource.RLIMIT_CPU, (int(started) + _LIMIT_S + 1, hard))
      signal.setitimer(signal.ITIMER_REAL, _HANG_S)
      outcome, text = input_mutants.read(made, folder)
      signal.setitimer(signal.ITIMER_REAL, 0)
      if _peak_kb() - before_kb > _LIMIT_KB:
        outcome = "memory"
      text = f"{name} {done}: {text}".replace("\t", " ").replace("\n", " ")
      line = f"{outcome}\t{text[:400]}\t{time.process_time() - started}\n"
      os.write(writer, line.encode("utf-8", "replace"))


def _peak_kb() -> int:
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run_all(name: str, numbers: List[int]) -> Iterator[campaigns.Trial]:
  """Sends mutants of a kind through the program that reads them, a fork each."""
  given, prepare = program_inputs.INPUTS[name], shortcuts.shortcuts()
  label = f"{given.read[0]}: {name}"
  with tempfile.TemporaryDirectory() as made:
    kind = program_inputs.sound(given, forked.SCRIPTS, made, prepare)
  for first in range(0, len(numbers), _BLOCK):
    block = numbers[first:first + _BLOCK]
    for number, mutant in zip(
        block, program_inputs.mutants(name, kind, FLAGS.seed, block)):
      with tempfile.TemporaryDirectory() as folder:
        outcome, text, seconds = _run(given.read, mutant, folder, prepare)
        if given.anew and number < FLAGS.anew:
          input_mutants.clear(folder)
          again, said, _ = _run(given.read, mutant, folder, None)
          if (again, said) != (outcome, text):
            outcome, text = "differs", f"{outcome} in a fork ({text}), {again} anew ({said})"
        yield _trial(label, number, outcome, f"{mutant[1]} {mutant[3]}: {text}", seconds)


def _run(
    read: Tuple[str, ...], mutant: program_inputs.Mutant, folder: str,
    prepare: Optional[Callable[[], None]]) -> Tuple[str, str, float]:
  """What a program did in an empty folder, what it said of an error, and its CPU time.

  `prepare` is for its fork; without, it is started anew.
  """

  def limit() -> None:
    if prepare is not None:
      prepare()
    resource.setrlimit(resource.RLIMIT_CPU, (_LIMIT_S, _LIMIT_S + 5))

  files, out = os.path.join(folder, "in"), os.path.join(folder, "out")
  os.mkdir(files)
  os.mkdir(out)
  with open(os.path.join(out, "mine.txt"), "w", encoding="utf-8") as mine:
    mine.write("the user's own")
  input_mutants.write(mutant[0], files, *mutant[1:])
  before, before_kb = (_digests(files), _digests(out)), _peak_kb()
  ended = forked.Program(
      forked.SCRIPTS, program_inputs.filled(read, files, out), os.path.join(folder, "run"),
      prepare=limit, anew=prepare is None).finish(_HANG_S)
  said = ended.last_line
  if ended.code is None or ended.code == -signal.SIGXCPU:
    outcome = "hung"
  elif ended.code < 0:
    outcome, said = "crashed", f"signal {-ended.code}: {said}"
  elif ended.has_traceback or ended.code not in (0, 2):
    outcome = "raised"
  elif ended.peak_kb - before_kb > _LIMIT_KB:
    outcome = "memory"
  elif ended.code == 0:
    outcome, said = "loaded", ""
  else:
    outcome = "refused" if (_digests(files), _digests(out)) == before else "changed"
  return outcome, said, ended.cpu_s


def _digests(folder: str) -> Dict[str, str]:
  """Path -> digest of all files."""
  return {path: hashlib.sha256(content).hexdigest()
          for path, content in forked.tree(folder).items() if "\0" not in path}


def main(_: List[str]) -> None:
  """Tries the mutants and prints the table; ends with 1 if there was a failure."""
  log = campaigns.Log(FLAGS.log)
  loaders = [kind for kind in input_mutants.KINDS if not FLAGS.kinds or kind in FLAGS.kinds]
  programs = list(program_inputs.of(FLAGS.kinds))
  load_numbers = range(FLAGS.first, FLAGS.first + FLAGS.mutants)
  run_numbers = range(FLAGS.first, FLAGS.first + FLAGS.programs)
  labels = {name: f"{program_inputs.INPUTS[name].read[0]}: {name}" for name in programs}
  try:
    forked.import_all(*(["tensorflow_gnn", "placeto_tf.encoding.graph_sets"] if "graph_set" in (
        *loaders, *programs) else []))
    for kind in loaders:
      for trial in load_all(kind, log.missing(kind, load_numbers)):
        log.add(trial)
    for name in programs if FLAGS.programs else ():
      missing = log.missing(labels[name], run_numbers)
      for trial in run_all(name, missing) if missing else ():
        log.add(trial)
  except KeyboardInterrupt:
    print("interrupted: what was tried until then", file=sys.stderr)
  trials = [trial for kind in loaders for trial in log.of(kind, load_numbers)]
  trials += [trial for name in programs for trial in log.of(labels[name], run_numbers)]
  failures = [trial for trial in trials if trial["outcome"] not in _SOUND]
  for trial in failures[:50]:
    print(f"{trial['kind']} mutant {trial['number']}: {trial['outcome']}, {trial['text']} "
          f"({trial['seconds']:.1f} s)")
  print(campaigns.table(trials, _OUTCOMES, "file"))
  sys.exit(1 if failures else 0)


def run() -> None:
  """Entry point."""
  app.run(main)


if __name__ == "__main__":
  run()
