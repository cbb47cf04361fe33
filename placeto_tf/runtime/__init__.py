"""Real sessions: running placed graphs on the devices of this machine."""
