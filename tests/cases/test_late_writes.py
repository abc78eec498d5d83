"""C29: a request that ends while its KV is being written, and the request that gets its blocks."""

from __future__ import annotations

from typing import Any

from pdkv_connector.runtime.block_tables import BlockTables
from pdkv_connector.session.actions import Fail
from pdkv_connector.session.consumer_book import ConsumerBook
from tests.cases.conftest import OpenPair
from tests.cases.pair import new_transfer_id
from tests.cases.planted import caught, nothing, plant
from tests.cases.text import Text


def test_case_c29_the_next_request_in_its_blocks_keeps_its_own_kv(open_pair: OpenPair) -> None:
    """sglang#35049: blocks went back to the pool with the request while the prefill engine still wrote into them, and
    the next request held another's KV without a sign of it.
    """
    pair = open_pair(None, {"num_blocks": 21})
    text, transfer_id = Text(200), new_transfer_id()
    leaving = pair.ask_decode(text, transfer_id)
    pair.ask_prefill(text, transfer_id)
    pair.decode.step()
    blocks = pair.decode.blocks_of(leaving)
    pair.prefill.step()
    pair.decode.worker.rank.wait_slabs(1)
    pair.decode.abort(leaving)
    pair.until(lambda: pair.decode.status(leaving) == "gone", "end of the request that left", pair.decode)
    heir = pair.decode.add(Text(120), max_tokens=60)
    pair.until(lambda: pair.decode.num_computed[heir] >= 120, "prompt of the next request", pair.decode)
    inherited = pair.decode.blocks_of(heir) & blocks
    assert inherited, "none of the blocks was used again: this shows nothing"
    pair.until_answered(heir)
    pair.until_released()


def report_and_go_on(_original: Any) -> Any:
    """The engine hears at once that a transfer failed; what is still written for it is scattered all the same."""

    def fail(self: ConsumerBook, transfer: Any, reason: str, _now: float) -> None:
        self.actions.append(Fail(transfer.transfer_id, reason))

    return fail


def test_case_c29_control_blocks_that_go_back_before_the_last_write(open_pair: OpenPair) -> None:
    with caught(
        "attends to wrong KV", plant(ConsumerBook, "fail", report_and_go_on), plant(BlockTables, "drop", nothing)
    ):
        test_case_c29_the_next_request_in_its_blocks_keeps_its_own_kv(open_pair)
