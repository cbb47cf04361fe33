"""Live models train placed as they train plain, and their step takes what was promised.

Models stand in `keras_zoo`; ops are placed at random, soft placement and graph optimisations are
off. The small ones always run; the others by

  scripts/with_env python -m pytest -m heavy tests/placements/keras_proof_test.py

Those of packages that are not installed are skipped, with the package named.
"""

import importlib.util
import pathlib

import pytest

import keras_zoo
import ordinary_models
import subprograms

_PROGRAM = pathlib.Path(__file__).with_name("keras_proof.py")


def _prove(version, devices, *names, timeout=3600):
  return subprograms.run_with_keras(version, _PROGRAM, str(devices), *names, timeout=timeout)


def _check(case, devices):
  assert case["trained"] and case["equal_results"] and case["equal_variables"]
  assert case["elsewhere"] == [] and case["unseen"] == [] and case["variables_elsewhere"] == []
  assert case["devices"] == devices
  assert case["variables"] < devices or case["on_devices"] > 1
  assert case["applied"] == case["promised"] > 0


@pytest.fixture(scope="module", params=["2", "3"], ids=["keras_2", "keras_3"], name="found")
def found_fixture(request):
  # A loop of plain TensorFlow is the same beside either Keras.
  names = [name for name in keras_zoo.SMALL if request.param == "2" or name != "gradient_tape"]
  return _prove(request.param, 2, *names)


@pytest.mark.parametrize("name", keras_zoo.SMALL)
def test_small_models_train_alike_and_take_what_was_promised(found, name):
  _check(found[name], 2)


@pytest.mark.heavy
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("version", ["2", "3"], ids=["keras_2", "keras_3"])
@pytest.mark.parametrize("name", [*ordinary_models.MODELS, *keras_zoo.SMALL])
def test_models_train_alike_and_take_what_was_promised(version, devices, name):
  package = ordinary_models.LIBRARIES.get(name.partition("_")[0])
  if package and importlib.util.find_spec(package) is None:
    pytest.skip(f"needs the package {package}")
  if package == "transformers" and version == "3":
    pytest.skip("the TensorFlow models of transformers are of Keras 2")
  _check(_prove(version, devices, name, timeout=9000)[name], devices)
