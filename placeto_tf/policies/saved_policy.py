"""Policies of tf-agents as SavedModels, which run without this package."""

from __future__ import annotations

import warnings
from typing import Any


def save_policy(policy: Any, directory: str) -> None:
  """Writes a `TFPolicy` with dense observations by tf-agents' `PolicySaver`."""
  from tf_agents.policies import policy_saver
  with warnings.catch_warnings():
    # Warnings of distributions among the outputs of functions that are saved beside `action`.
    warnings.filterwarnings("ignore", "Encoding a StructuredValue", UserWarning)
    policy_saver.PolicySaver(policy).save(directory)
