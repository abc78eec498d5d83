"""Every error this package raises on purpose.

    PdkvError
    ├── ConfigError        a setting is unknown, of the wrong type, or impossible in combination
    ├── LayoutError        KV memory does not have the shape it was said to have
    │   └── SlabTooLarge   encoded KV does not fit the buffer it was meant for
    ├── ProtocolError      a peer sent something malformed, oversized or out of turn
    ├── HandshakeRefused   the two engines cannot share KV; names the differing fact
    ├── TransportError     bytes could not be moved: host unreachable, port taken, library missing
    ├── TransferFailed     one request's KV did not arrive; names the transfer and the cause
    └── EngineError        the host engine is of an untested version or breaks its contract

Each message names the thing, the value and the fix, on one line.
"""

from __future__ import annotations


class PdkvError(Exception):
    """Root of all errors raised by pdkv-connector."""


class ConfigError(PdkvError, ValueError):
    """A setting is unknown, of the wrong type, or impossible together with another."""


class LayoutError(PdkvError):
    """KV memory does not have the shape it was said to have."""


class SlabTooLarge(LayoutError):
    """Encoded KV does not fit the buffer it was meant for: fewer tokens or layers would."""


class ProtocolError(PdkvError):
    """A peer sent something malformed, oversized or out of turn."""


class HandshakeRefused(PdkvError):
    """The two engines cannot share KV; the message names the fact that differs."""


class TransportError(PdkvError):
    """Bytes could not be moved: host unreachable, port taken, library missing."""


class TransferFailed(PdkvError):
    """One request's KV did not arrive."""


class EngineError(PdkvError):
    """The host engine is of an untested version or breaks its contract."""
