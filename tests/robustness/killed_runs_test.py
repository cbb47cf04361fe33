"""Programs that are killed and started again: with programs of our own, which break each promise,
and two kills of one that keeps them all. kill_runs.py makes hundreds."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Each works through ten files, and goes on where it stopped.
PROGRAM = """
import os, socket, subprocess, sys, tempfile, time
from absl import app, flags
flags.DEFINE_string("out", None, "")
flags.DEFINE_string("breaks", "", "")

def main(_):
  out, breaks = flags.FLAGS.out, flags.FLAGS.breaks
  # What is left behind goes on until the folder of this run is removed.
  stays = f"import os, time\\nwhile os.path.exists({out!r}): time.sleep(0.1)"
  if breaks == "process":
    subprocess.Popen([sys.executable, "-S", "-c", stays],
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  if breaks == "port":  # of a process that is not known to be of this program
    server = socket.create_server(("127.0.0.1", 0))
    server.set_inheritable(True)
    subprocess.Popen([sys.executable, "-S", "-c", stays], env={},
                     close_fds=False, start_new_session=True,
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  if breaks == "temporary":
    tempfile.mkdtemp()
  for number in range(10):
    path = os.path.join(out, str(number))
    if os.path.exists(path):
      continue
    target = path if breaks == "half" else path + ".tmp"
    with open(target, "w") as file:
      for line in range(10):
        file.write("line\\n" if breaks != "bits" else f"{os.getpid()}\\n")
        file.flush()
        # Most of a run is in the middle of a file, so that kills are sure to meet one half written.
        time.sleep(0.3 if breaks == "half" and number < 3 and line == 4 else 0.002)
    if target != path:
      os.replace(target, path)
  if breaks == "forgets":
    open(os.path.join(out, "left.partial"), "w").close()

def run():
  try:
    app.run(main)
  except KeyboardInterrupt:
    sys.exit(130)
"""
# Forks from an interpreter that has no threads, and no TensorFlow where it is not needed.
DRIVER = """
import json, os, sys, tempfile
import forked
import killed_runs

scripts, results, MOST_TRIALS = sys.argv[1], {}, 30
for breaks in ("nothing", "process", "port", "temporary", "half", "bits", "forgets"):
  case = killed_runs.Case(("fake", "--out={out}", f"--breaks={breaks}"))
  with tempfile.TemporaryDirectory() as folder:
    reference = killed_runs.Reference(case, scripts, os.path.join(folder, "whole"), lambda: None)
    killed_runs.GONE_S = 0.2
    trials = results.setdefault(breaks, [])
    # A reference that the machine held up is longer than the runs that are to be killed.
    while len(trials) < MOST_TRIALS and (
        sum(len(trial["signals"]) for trial in trials) < 3 or
        breaks != "nothing" and all(trial["outcome"] == "equal" for trial in trials)):
      trials.append(killed_runs.trial(
          breaks, reference, 0, len(trials), os.path.join(folder, str(len(trials)))))
print(json.dumps(results))
"""


def run(code, *arguments):
  here = str(pathlib.Path(__file__).resolve().parent)
  path = os.pathsep.join([str(ROOT), here, *filter(None, [os.environ.get("PYTHONPATH")])])
  done = subprocess.run(
      [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False,
      timeout=600, env={**os.environ, "PYTHONPATH": path})
  assert done.returncode == 0, done.stderr[-3000:]
  return done.stdout


@pytest.fixture(name="trials", scope="module")
def trials_fixture(tmp_path_factory):
  scripts = tmp_path_factory.mktemp("scripts")
  (scripts / "fake.py").write_text(PROGRAM)
  return json.loads(run(DRIVER, str(scripts)))


def test_a_program_that_keeps_its_promises_is_found_equal(trials):
  assert {trial["outcome"] for trial in trials["nothing"]} == {"equal"}
  assert sum(len(trial["signals"]) for trial in trials["nothing"]) >= 3


@pytest.mark.parametrize("breaks, said", [
    ("process", "there are still"), ("port", "there are still port "),
    ("temporary", "temporary files are left"),
    ("half", "differ from those of a run that was not killed"),
    ("bits", "differ from those of a run that was not killed"),
    ("forgets", "left.partial are left")])
def test_a_broken_promise_is_found(trials, breaks, said):
  found = [trial["text"] for trial in trials[breaks] if trial["outcome"] == "wrong"]
  assert found and any(said in text for text in found), trials[breaks]


def test_ctrl_c_before_a_program_begins_is_no_traceback_of_the_program(tmp_path):
  (tmp_path / "fake.py").write_text(PROGRAM)
  assert run("""
import os, signal, sys, tempfile
import forked

for _ in range(5):
  with tempfile.TemporaryDirectory() as folder:
    program = forked.Program(sys.argv[1], ("fake", f"--out={folder}"), os.path.join(folder, "run"))
    program.send(signal.SIGINT)
    ended = program.finish(300)
    print(ended.code, ended.said, end=";")
""", str(tmp_path)) == 5 * "130 ;"


@pytest.mark.heavy  # two minutes, and kills at random moments may find something
def test_the_campaigns_run_on_the_programs_themselves():
  told = run("""
import os, sys, tempfile
import forked

forked.import_all()
for command in (["kill_runs", "--kills=2", "--cases=evaluate", "--seed=1"],
                ["fuzz_inputs", "--kinds=cluster", "--mutants=20", "--programs=4"]):
  with tempfile.TemporaryDirectory() as folder:
    ended = forked.Program(sys.argv[1], command, os.path.join(folder, "run")).finish(300)
    print(ended.code, ended.said)
""", str(pathlib.Path(__file__).resolve().parent))
  assert "| evaluate | " in told and " kills: " in told, told
  assert "| cluster | " in told and "| place: cluster | " in told, told
  assert told.splitlines()[0].startswith("0 ") and told.count("| 0 |") >= 2, told
