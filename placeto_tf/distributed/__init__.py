"""Work on many machines, on Ray: tasks, actors, retries and the object store are Ray's."""
