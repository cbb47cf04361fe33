"""Documents: what they link to exists, and commands have the flags that they are shown with."""

import functools
import pathlib
import re

import pytest

from placeto_tf import policies
from placeto_tf.errors import PlacetoError
from placeto_tf.training import settings

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED_FLAGS = ROOT / "placeto_tf" / "programs" / "shared_flags.py"
ABSL_FLAGS = {"help", "helpfull", "flagfile"}

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(
    path for folder in ("docs", "examples", "placeto_tf", "scripts")
    for path in (ROOT / folder).rglob("*.md"))])
each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


PROGRAM = r"(?:scripts/(?:benchmarks/)?|tests/robustness/)(\w+)\.py"


def without_code(text):
  return re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(path):
  """The fragments by which a document's headings are linked, as GitHub makes them."""
  titles = re.findall(r"^#+ (.+)$", without_code(path.read_text()), re.MULTILINE)
  return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands(text):
  """(program, its arguments) of every program in the shell blocks and in line."""
  blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
  blocks += [block for block in re.findall(r"`([^`]+)`", without_code(text))
             if re.search(PROGRAM, block)]
  for block in blocks:
    for line in re.sub(r"\\\n", " ", block).splitlines():
      yield from re.findall(rf"{PROGRAM}([^;|]*)", line)


def program_files():
  return [*(ROOT / "scripts").glob("**/[!_]*.py"), *(ROOT / "tests" / "robustness").glob("*.py")]


@functools.cache
def flags_of(program):
  path = next(path for path in program_files() if path.stem == program)
  sources = [path.read_text(), SHARED_FLAGS.read_text()]
  return ABSL_FLAGS.union(*(
      re.findall(r'DEFINE_\w+\(\s*"(\w+)"', source) for source in sources))


@each_document
def test_links_lead_to_files_and_headings_that_exist(document):
  for target in re.findall(r"\]\(([^)\s]+)\)", without_code(document.read_text())):
    if re.match(r"https?:", target):
      continue
    path, _, fragment = target.partition("#")
    linked = (document.parent / path).resolve() if path else document
    assert linked.exists(), f"{target} is not there"
    assert not fragment or fragment in anchors(linked), f"{target}: no such heading"


@each_document
def test_source_files_that_are_named_in_full_exist(document):
  named = re.findall(r"`((?:placeto_tf|tests|scripts|docs)/[\w/.]*\.\w+)", document.read_text())
  assert not [name for name in named if not (ROOT / name).exists() and "NAME" not in name]


@each_document
def test_commands_have_the_flags_they_are_shown_with(document):
  for program, arguments in commands(document.read_text()):
    if program == "NAME":
      continue
    used = set(re.findall(r"(?<=\s)--(\w+)", arguments))
    assert used <= flags_of(program), f"{program}.py has no {used - flags_of(program)}"


@each_document
def test_flags_that_are_named_in_the_text_belong_to_a_program(document):
  named = set(re.findall(r"`--(\w+)", without_code(document.read_text())))
  known = set().union(*(flags_of(path.stem) for path in program_files()))
  assert named <= known, f"no program has {named - known}"


@each_document
def test_fields_that_training_commands_set_exist(document):
  if "; commands are of commit " in document.read_text():
    pytest.skip("its commands are those of an earlier commit")
  for program, arguments in commands(document.read_text()):
    policy = re.search(r"--policy=(\w+)", arguments)
    if program != "train" or policy is None:
      continue
    preset = re.search(r"--preset=(\w+)", arguments)
    config = policies.trainable()[policy.group(1)]().preset(preset and preset.group(1)).config
    for setting in re.findall(r"--set (\w[\w.]*=[^\s`]+)", arguments):
      try:
        settings.changed(config, [setting])
      except PlacetoError as error:
        pytest.fail(f"--set {setting}: {error}")


def test_the_readme_is_short_and_every_folder_has_one():
  readme = (ROOT / "README.md").read_text()
  assert len(readme.splitlines()) <= 150 and len(readme.split()) <= 1200
  for folder in sorted(path.parent for path in (ROOT / "placeto_tf").glob("*/__init__.py")):
    readme = folder / "README.md"
    assert readme.exists(), f"{folder.name} has no README.md"
    assert len(readme.read_text().splitlines()) <= 60, f"{readme} is long; results go to docs/"


def test_the_index_of_results_lists_every_page():
  index = (ROOT / "docs" / "results.md").read_text()
  for page in (ROOT / "docs" / "results").glob("*.md"):
    assert f"(results/{page.name})" in index, f"{page.name} is not in docs/results.md"
