"""The registry of facts about op types, which all analyses of graphs share; see `OpRule`."""

from placeto_tf.ops import rules as _rules  # registers the rows
from placeto_tf.ops.op_rule import VARIABLE, OpRule, Scale, members, registered, rule_of, types_with

__all__ = (
    "FILLS", "OpRule", "QUOTIENTS", "Scale", "VARIABLES", "members", "registered", "rule_of",
    "types_with")

VARIABLES = types_with(role=VARIABLE)
# First parts of the types of ops that fill lookup tables and start iterators, before any step.
FILLS = ("InitializeTable", "LookupTableImport", "MakeIterator")
QUOTIENTS = types_with(scale=Scale("quotient"))

del _rules
