"""Which tokens of a layer the decode engine needs."""

from __future__ import annotations

from pdkv_connector.types import Span


def needed_tokens(stop: int, num_local_hit: int, window: int) -> Span:
    """Tokens to fetch so that the decode engine can compute token `stop` (the last of the prompt) itself.

    `num_local_hit` tokens are in its own prefix cache. With a sliding window, query `q` attends to keys
    `q - window + 1 .. q`; `window` 0 is full attention.
    """
    first_seen = max(0, stop - (window - 1)) if window else 0
    return Span(min(max(num_local_hit, first_seen), stop), stop)
