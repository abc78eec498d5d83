"""Moves bytes between processes: slabs over a `Transport`, control messages over the `ControlPlane`."""
