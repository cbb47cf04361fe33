"""Placements applied to live objects of the process: functions and Keras models."""

from placeto_tf.live.applied import AppliedFunction, apply_checked
from placeto_tf.live.fixed_cost import fixed_cost_note

__all__ = ["AppliedFunction", "apply_checked", "fixed_cost_note"]
