"""C30: set-ups in which no KV can move are told, not served in silence."""

from __future__ import annotations

import pytest

from pdkv_connector.adapters.vllm.scheduler_half import SchedulerHalf
from tests.cases.planted import caught, nothing, plant
from tests.unit.adapters import test_scheduler_half as halves


def test_case_c30_control_a_wrong_role_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    with caught("no KV moves", plant(SchedulerHalf, "_warn_role", nothing)):
        halves.test_case_c30_a_request_for_the_other_role_is_told("kv_consumer", halves.PRODUCE, caplog)


def test_case_c30_control_decoding_alone_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    with caught("0 == 2", plant(SchedulerHalf, "_warn_decode_only", nothing)):
        halves.test_case_c30_decoding_without_any_transfer_is_told_now_and_then("kv_consumer", 2, caplog)
