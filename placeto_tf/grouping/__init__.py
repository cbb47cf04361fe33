"""Groups ops that are placed together.

`group_ops` is the main function; `METHODS` are its methods of grouping.
"""

from placeto_tf.grouping.api import METHODS, group_ops

__all__ = ["METHODS", "group_ops"]
