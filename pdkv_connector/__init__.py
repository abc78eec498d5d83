"""Streaming KV transfer between prefill and decode engines.

Importing this package pulls in neither torch nor an engine.
"""

__version__ = "0.1.0"
