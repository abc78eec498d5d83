"""Device kernels, one operation a file. Nothing here imports pdkv_connector."""
