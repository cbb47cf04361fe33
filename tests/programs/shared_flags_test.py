"""What the programs share beside error handling."""

import pytest

from placeto_tf.errors import PlacetoError
from placeto_tf.programs import shared_flags


def test_globs_become_files_and_families_their_members(tmp_path):
  for name in ("b.pb", "a.pb", "c.txt"):
    (tmp_path / name).write_text("")
  texts = ["zoo:bert:size=large", f"{tmp_path}/*.pb", "family:ptb[1:3]", "plain.pb"]
  assert shared_flags.expand_globs(texts) == (
      "zoo:bert:size=large", f"{tmp_path}/a.pb", f"{tmp_path}/b.pb", "family:ptb[1]",
      "family:ptb[2]", "plain.pb")


def test_sets_of_devices_are_read_from_json(tmp_path):
  path = tmp_path / "allowed.json"
  path.write_text('{"embedding/.*": ["/GPU:0", "/CPU:0"]}')
  assert shared_flags.allowed_sets(str(path)) == {"embedding/.*": ["/GPU:0", "/CPU:0"]}
  assert shared_flags.allowed_sets(None) == {}
  for wrong in ("[1]", "{", ""):
    path.write_text(wrong)
    with pytest.raises(PlacetoError, match=r"expected a JSON object such as \{"):
      shared_flags.allowed_sets(str(path))
