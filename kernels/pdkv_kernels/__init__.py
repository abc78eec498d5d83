"""Triton kernels of pdkv-connector, one operation a file."""
