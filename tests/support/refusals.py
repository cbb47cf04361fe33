"""Messages of errors."""

import pytest

from placeto_tf.errors import PlacetoError


def sentence(call, *arguments, **options):
  """The message of an error of the package, in one line."""
  with pytest.raises(PlacetoError) as caught:
    call(*arguments, **options)
  assert "\n" not in str(caught.value)
  return str(caught.value)
