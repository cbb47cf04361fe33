"""The hierarchical policy: a grouper of ops and a placer of groups, learned together."""
