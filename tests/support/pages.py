"""Fields of the files that programs write, as docs/files.md has them."""

import pathlib
import re

_PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "files.md"


def fields(section):
  """Returns the names in the first column of a section's table."""
  table = re.search(rf"^##+ {section}\n(.*?)(?=^#|\Z)", _PAGE.read_text(), re.DOTALL | re.MULTILINE)
  rows = re.findall(r"^\| (`.*?`) \|", table[1], re.MULTILINE)
  return set(re.findall(r"`(\w+)`", " ".join(rows)))
