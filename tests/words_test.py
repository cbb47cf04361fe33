"""The field's words: names of the package do not use words that only this project used."""

import pathlib
import re
import tokenize

import pytest

ROOT = pathlib.Path(__file__).parent.parent
# Word -> the field's word.
WORDS = {
    "island": "independent run", "islands": "independent runs", "ledger": "search log",
    "ledgers": "search log", "account": "search log or evaluation budget", "draw": "sample",
    "draws": "samples", "drawn": "sampled", "twin": "reverse edge, copy", "twins": "copies",
    "joins": "all-reduces or all-gathers", "joining": "collectives", "power": "exponent",
    "powers": "exponents", "legend": "dimensions", "stays": "is kept", "form": "strategy"}
# Names that a library gives, and pictures, which are drawn and have legends.
EXCEPTIONS = {"legend": ("timeline.py", "tables.py"), "draw": ("timeline.py",)}
SOURCES = sorted((ROOT / "placeto_tf").rglob("*.py"))


def words_of(name):
  """Yields the words of a name in snake case or camel case."""
  return (word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_have_the_words_of_the_field(path):
  with open(path, "rb") as file:
    names = {token.string for token in tokenize.tokenize(file.readline)
             if token.type == tokenize.NAME}
  wrong = {name: WORDS[word] for name in names for word in words_of(name)
           if word in WORDS and path.name not in EXCEPTIONS.get(word, ())}
  assert not wrong, f"{path}: use the field's words: {wrong}"


def test_pages_have_the_words_of_the_field():
  pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("placeto_tf/**/README.md")]
  assert len(pages) > 50
  banned = re.compile(r"\b(islands?|ledgers?|twins?|joins (?:of|across) replicas)\b", re.IGNORECASE)
  wrong = {str(page.relative_to(ROOT)): found for page in pages
           if (found := banned.findall(page.read_text(encoding="utf-8")))}
  assert not wrong
