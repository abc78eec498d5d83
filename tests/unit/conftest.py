"""Hypothesis settings for unit tests: no deadlines, since no test here asserts a time."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("pdkv", deadline=None, print_blob=True)
settings.load_profile("pdkv")
