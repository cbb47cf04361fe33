"""Ops -> groups: what is placed together.

`group_ops` is the way in; `METHODS` are the ways of grouping it offers.
"""

from placeto_tf.grouping.api import METHODS, group_ops

__all__ = ["METHODS", "group_ops"]
