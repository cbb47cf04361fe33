"""The field's words: names, keys of reports, docstrings and pages avoid the project's old words."""

import ast
import io
import pathlib
import re
import tokenize

import pytest

ROOT = pathlib.Path(__file__).parent.parent
# Word of a name -> the field's word.
WORDS = {
    "account": "search log or evaluation budget", "cut": "boundary, or crossing edges",
    "cuts": "boundaries", "dialect": "format", "draw": "sample", "draws": "samples",
    "drawn": "sampled", "form": "strategy", "forms": "strategies", "island": "independent run",
    "islands": "independent runs", "join": "all-reduce or all-gather; concatenate",
    "joined": "combined or concatenated", "joining": "collectives", "joins": "collectives",
    "ledger": "search log", "ledgers": "search logs", "legend": "dimensions", "power": "exponent",
    "powers": "exponents", "reaches": "is read by", "room": "capacity, or folder",
    "rooms": "folders", "stays": "is kept", "twin": "reverse edge, copy", "twins": "copies",
    "units": "supernodes or coarse groups"}
# Sharding specs and types of ops have these names; devices and methods do have kinds.
WORDS_OF_REPLICATION = {"kind": "spec or op_type", "kinds": "specs or op_types"}
CLASSES = {"Whole": "Replicated", "Own": "Sharded"}
# A name that is an exception -> the reason.
EXCEPTIONS = {
    "_draw_lanes": "a picture is drawn", "draw": "a picture is drawn",
    "_join": "a layer, whose name is in weights", "units": "of a layer, as Keras has it"}
# The words as pages, docstrings and comments would use them.
TEXT = re.compile(
    r"\b(islands?|ledgers?|twins?|dialects?|joins (?:of|across|over) replicas|what is joined"
    r"|powers? of (?:a|the) (?:tensor|spec)|other rooms|legend:)\b", re.IGNORECASE)
SOURCES = sorted(path for folder in ("placeto_tf", "scripts", "examples")
                 for path in (ROOT / folder).rglob("*.py"))


def words_of(name):
  """Yields the words of a name in snake case or camel case."""
  return (word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name))


def names_of(tree):
  """Yields the names that a module defines, and the keys of its dictionaries.

  Attributes and arguments of libraries (`str.join`, `axes.legend`) are used, not defined.
  """
  for node in ast.walk(tree):
    if isinstance(node, ast.Name) or isinstance(node, ast.Attribute) and isinstance(
        node.ctx, ast.Store):
      yield getattr(node, "id", None) or node.attr
    elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
      yield node.name
    elif isinstance(node, ast.arg):
      yield node.arg
    elif isinstance(node, ast.Dict):
      yield from (key.value for key in node.keys
                  if isinstance(key, ast.Constant) and isinstance(key.value, str))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_and_keys_have_the_words_of_the_field(path):
  banned = {**WORDS, **(WORDS_OF_REPLICATION if path.parent.name == "replication" else {})}
  names = set(names_of(ast.parse(path.read_text(encoding="utf-8")))) - set(EXCEPTIONS)
  wrong = {name: banned[word] for name in names for word in words_of(name) if word in banned}
  wrong.update({name: CLASSES[name] for name in names & set(CLASSES)})
  assert not wrong, f"{path}: use the field's words: {wrong}"


def _prose(path):
  """Returns a page, or the docstrings, comments and messages of a module."""
  text = path.read_text(encoding="utf-8")
  if path.suffix == ".md":
    return text
  return "\n".join(token.string for token in tokenize.generate_tokens(io.StringIO(text).readline)
                   if token.type in (tokenize.COMMENT, tokenize.STRING))


def test_pages_docstrings_and_messages_have_the_words_of_the_field():
  pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("placeto_tf/**/README.md")]
  assert len(pages) > 50
  wrong = {str(path.relative_to(ROOT)): found for path in [*pages, *SOURCES]
           if (found := TEXT.findall(_prose(path)))}
  assert not wrong


def test_the_glossary_defines_the_words_that_replaced_them():
  glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
  missing = [word for word in (
      "all-reduce", "all-gather", "sharding spec", "replication strategy", "mirrored variables",
      "shared variables", "supernode", "random op", "independent run", "evaluation budget",
      "search log", "human-expert baseline") if f"| {word} |" not in glossary]
  assert not missing
