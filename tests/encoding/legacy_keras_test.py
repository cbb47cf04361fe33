import pytest

from placeto_tf.encoding.legacy_keras import check_legacy_keras
from placeto_tf.errors import SetupError


def test_tensorflow_up_to_2_15_needs_nothing():
  check_legacy_keras({}, "2.15.1")


def test_asking_for_a_legacy_keras_that_is_neither_needed_nor_there_is_named(monkeypatch):
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  with pytest.raises(SetupError, match="unset TF_USE_LEGACY_KERAS"):
    check_legacy_keras({"TF_USE_LEGACY_KERAS": "1"}, "2.15.1")


def test_a_missing_variable_is_named_with_the_remedy():
  with pytest.raises(SetupError, match="set TF_USE_LEGACY_KERAS=1 before|pip install 'tf-keras"):
    check_legacy_keras({}, "2.21.0")


def test_a_variable_that_tensorflow_would_not_accept_is_shown():
  with pytest.raises(SetupError, match="'yes'|pip install 'tf-keras"):
    check_legacy_keras({"TF_USE_LEGACY_KERAS": "yes"}, "2.21.0")


def test_this_very_process_passes():
  check_legacy_keras()
