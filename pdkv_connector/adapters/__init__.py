"""One package per engine; engines are imported here and nowhere else."""
