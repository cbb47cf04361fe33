"""Feeds mutated files to the loaders, and to the programs; reports forbidden outcomes.

  scripts/with_env python scripts/fuzz_inputs.py --mutants=5000 --programs=300

Of each kind of file other than graphs (for which there is fuzz_graphs.py), --mutants are read by
its loader, and --programs in all go through simulate.py and place.py. A mutant must never raise
anything but the package's own errors, in one sentence, take more than 30 seconds, or take more than
2 GB of memory above that of a sound file. If a program fails, its --out must stay as it was.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import importlib.util
import os
import resource
import signal
import sys
import tempfile
import time
from typing import Dict, Iterator, List, NamedTuple, Tuple

from absl import app, flags

from placeto_tf.programs import input_mutants

FLAGS = flags.FLAGS

flags.DEFINE_integer("mutants", 5_000, "Of each kind, for its loader.", lower_bound=0)
flags.DEFINE_integer("programs", 300, "Mutants in all that go through programs.", lower_bound=0)
flags.DEFINE_integer("first", 0, "Number of the first one.", lower_bound=0)
flags.DEFINE_integer("seed", 0, "Seed of all of them.", lower_bound=0)
flags.DEFINE_list("kinds", [], "Kinds of files; default: all.")

_LIMIT_S = 30.0
_LIMIT_KB = 2 * 2**20  # 2 GB
_OUTCOMES = ("loaded", "refused", "raised", "crashed", "hung", "memory", "out changed")
_SOUND = ("loaded", "refused")


class Outcome(NamedTuple):
  """The outcome of one mutant."""

  kind: str
  number: int
  outcome: str
  text: str
  seconds: float


def load_all(kind: str, made: input_mutants.Kind) -> Iterator[Outcome]:
  """Reads the mutants of a kind, in forks that go on where one was lost."""
  number, end = FLAGS.first, FLAGS.first + FLAGS.mutants
  while number < end:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
      with contextlib.suppress(BaseException):
        os.close(reader)
        _load_some(kind, made, number, end, writer)
      os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as lines:
      for line in lines:
        text = line.rstrip("\n").split("\t")
        if text[0] != "begins":
          yield Outcome(kind, number, text[0], text[1], float(text[2]))
          number += 1
    _, status, _ = os.wait4(child, 0)
    if number < end:
      lost = "hung" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM else (
          "crashed")
      yield Outcome(kind, number, lost, f"status {status}", _LIMIT_S)
      number += 1


def _load_some(kind: str, made: input_mutants.Kind, first: int, end: int, writer: int) -> None:
  with tempfile.TemporaryDirectory() as folder:
    for number in range(first, end):
      name, content, done = input_mutants.mutant(made, FLAGS.seed, number)
      input_mutants.clear(folder)
      input_mutants.write(made, folder, name, content, done)
      before_kb, started = _peak_kb(), time.monotonic()
      signal.setitimer(signal.ITIMER_REAL, _LIMIT_S)  # ends this process
      outcome, text = input_mutants.read(made, folder)
      signal.setitimer(signal.ITIMER_REAL, 0)
      if _peak_kb() - before_kb > _LIMIT_KB:
        outcome = "memory"
      text = f"{name} {done}: {text}".replace("\t", " ").replace("\n", " ")
      line = f"{outcome}\t{text[:400]}\t{time.monotonic() - started}\n"
      os.write(writer, line.encode("utf-8", "replace"))


def _peak_kb() -> int:
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run_all(made: Dict[str, input_mutants.Kind]) -> Iterator[Outcome]:
  """Sends mutants of placements, clusters and costs through programs, a fork each."""
  import placeto_tf  # noqa: F401  (once, not in every fork)
  from placeto_tf.placing import reports, run  # noqa: F401

  graph = "--graph=zoo:rnnlm:layers=1:steps=2:hidden=16:batch=2:vocab=20"
  place = ["place", graph, "--max_evaluations=5", "--max_groups=8"]
  commands = {
      "placement": ["simulate", graph, "--cluster=k80:2", "--placement={}/placement.json"],
      "cluster": [*place, "--method=single", "--cluster={}/cluster.json"],
      "costs": [*place, "--method=single", "--cluster=k80:2", "--costs={}/costs.pb"],
  }
  names = [name for name in commands if name in made]
  for number in range(FLAGS.first, FLAGS.first + FLAGS.programs if names else 0):
    kind = names[number % len(names)]
    with tempfile.TemporaryDirectory() as folder:
      files, out = os.path.join(folder, "in"), os.path.join(folder, "out")
      os.mkdir(files)
      os.mkdir(out)
      with open(os.path.join(out, "mine.txt"), "w", encoding="utf-8") as file:
        file.write("the user's own")
      name, content, done = input_mutants.mutant(made[kind], FLAGS.seed, number)
      input_mutants.write(made[kind], files, name, content, done)
      command = [part.format(files) for part in commands[kind]]
      if command[0] == "place":
        command.append(f"--out={out}")
      before, started = _tree(out), time.monotonic()
      outcome, text = _run(command, os.path.join(folder, "said"))
      if outcome == "refused" and _tree(out) != before:
        outcome = "out changed"
      yield Outcome(f"{command[0]}: {kind}", number, outcome, f"{name} {done}: {text}",
                    time.monotonic() - started)


def _run(command: List[str], said: str) -> Tuple[str, str]:
  """The outcome of a program in a fork, and its last line of output."""
  before_kb = _peak_kb()
  child = os.fork()
  if not child:
    with contextlib.suppress(BaseException):
      descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
      os.dup2(descriptor, 1)
      os.dup2(descriptor, 2)
      code = 1
      try:
        _program(command)
      except SystemExit as exited:
        code = exited.code if isinstance(exited.code, int) else 0 if exited.code is None else 1
      except BaseException:
        import traceback

        traceback.print_exc()
      sys.stdout.flush()
      os._exit(code)
    os._exit(1)
  deadline = time.monotonic() + _LIMIT_S
  while True:
    ended, status, usage = os.wait4(child, os.WNOHANG)
    if ended:
      break
    if time.monotonic() > deadline:
      os.kill(child, signal.SIGKILL)
      os.waitpid(child, 0)
      return "hung", ""
    time.sleep(0.02)
  with open(said, encoding="utf-8", errors="replace") as file:
    lines = file.read().strip().splitlines() or [""]
  code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1
  if any("Traceback" in line for line in lines) or code not in (0, 2):
    return "raised", lines[-1]
  if usage.ru_maxrss - before_kb > _LIMIT_KB:
    return "memory", lines[-1]
  return ("refused", lines[-1]) if code == 2 else ("loaded", "")


def _program(command: List[str]) -> None:
  """Runs scripts/NAME.py with its flags in this process, in which flags were parsed before."""
  for name in ("mutants", "programs", "first", "seed", "kinds"):
    delattr(FLAGS, name)
  FLAGS.unparse_flags()
  path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{command[0]}.py")
  spec = importlib.util.spec_from_file_location("program_under_test", path)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  sys.modules["program_under_test"] = module
  spec.loader.exec_module(module)
  sys.argv = [path, *command[1:]]
  module.run()


def _tree(folder: str) -> Dict[str, str]:
  """Path -> digest of all files."""
  found = {}
  for directory, _, names in os.walk(folder):
    for name in names:
      path = os.path.join(directory, name)
      with open(path, "rb") as file:
        found[os.path.relpath(path, folder)] = hashlib.sha256(file.read()).hexdigest()
  return found


def summary(outcomes: List[Outcome]) -> str:
  """A table of outcomes by kind."""
  counts = collections.Counter((each.kind, each.outcome) for each in outcomes)
  rows = ["| file | mutants | " + " | ".join(_OUTCOMES) + " | slowest |",
          "|---|" + "---|" * (len(_OUTCOMES) + 2)]
  for kind in dict.fromkeys(each.kind for each in outcomes):
    mine = [each for each in outcomes if each.kind == kind]
    cells = [f"{counts[kind, outcome]:,}" for outcome in _OUTCOMES]
    rows.append(f"| {kind} | {len(mine):,} | " + " | ".join(cells)
                + f" | {max(each.seconds for each in mine):.1f} s |")
  return "\n".join(rows)


def main(_: List[str]) -> None:
  """Tries the mutants and prints the table; ends with 1 if there was a failure."""
  made = input_mutants.kinds(tuple(FLAGS.kinds))
  outcomes: List[Outcome] = []
  try:
    for kind, each in made.items():
      outcomes.extend(load_all(kind, each))
      print(f"{kind} done", file=sys.stderr, flush=True)
    outcomes.extend(run_all(made))
  except KeyboardInterrupt:
    print("interrupted: what was tried until then", file=sys.stderr)
  failures = [found for found in outcomes if found.outcome not in _SOUND]
  for failure in failures[:50]:
    print(f"{failure.kind} mutant {failure.number}: {failure.outcome}, {failure.text} "
          f"({failure.seconds:.1f} s)")
  print(summary(outcomes))
  sys.exit(1 if failures else 0)


if __name__ == "__main__":
  app.run(main)
