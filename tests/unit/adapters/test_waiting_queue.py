"""When does a request wait because too few blocks are free?"""

from __future__ import annotations

import pytest

from pdkv_connector.adapters.vllm import compat
from pdkv_connector.adapters.vllm.waiting_queue import WaitingQueue
from tests.unit.adapters.engine_objects import BLOCK_SIZE, WINDOW, idle_step, request


class Pool(compat.EngineBlocks):
    """A block pool of which only the number of free blocks is known."""

    def __init__(self, num_free: int) -> None:
        super().__init__()
        self._num_free = num_free

    @property
    def num_free(self) -> float:
        return self._num_free


@pytest.mark.parametrize(("num_free", "starves"), [(2, True), (3, False)])
def test_a_request_that_does_not_fit_starves(num_free: int, starves: bool) -> None:
    queue = WaitingQueue((0,), (BLOCK_SIZE,), Pool(num_free))
    queue.add(request(num_tokens=40))
    assert queue.starves is starves


@pytest.mark.parametrize(("num_free", "starves"), [(6, True), (7, False)])
def test_a_window_needs_its_own_blocks_only(num_free: int, starves: bool) -> None:
    """80 tokens: 5 blocks of full attention and 2 of a window of 32."""
    queue = WaitingQueue((0, WINDOW), (BLOCK_SIZE, BLOCK_SIZE), Pool(num_free))
    queue.add(request(num_tokens=80))
    assert queue.starves is starves


def test_who_runs_or_has_ended_waits_for_nothing() -> None:
    queue = WaitingQueue((0,), (BLOCK_SIZE,), Pool(0))
    runs, ended, receives = request("runs"), request("ended"), request("receives")
    for made in (runs, ended, receives):
        queue.add(made)
    assert queue.starves
    queue.allocated(runs)
    queue.remove(ended)
    assert queue.starves
    queue.allocated(receives)
    assert not queue.starves


def test_a_preempted_request_waits_again_and_is_next() -> None:
    queue = WaitingQueue((0,), (BLOCK_SIZE,), Pool(4))
    long, short = request("long", 100), request("short", 10)
    queue.add(long)
    queue.allocated(long)
    queue.add(short)
    assert not queue.starves
    output = idle_step()
    output.preempted_req_ids = {"long"}
    queue.stepped(output)
    assert queue.starves


def test_without_a_cache_manager_nothing_is_known_to_be_short() -> None:
    queue = WaitingQueue((0,), (BLOCK_SIZE,), compat.EngineBlocks())
    queue.add(request())
    assert not queue.starves
