"""The only stateful shell: one thread that pumps events into the sessions and carries out what they ask."""
