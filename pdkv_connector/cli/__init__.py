"""`pdkv`: demo, doctor, verify; plus the server and model helpers that tests and benchmarks share."""
