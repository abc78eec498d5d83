"""Which blocks a slab is read from or written to."""

from __future__ import annotations

from pdkv_connector.runtime.block_tables import GONE, BlockTables

TWO_GROUPS = (0, 1, 1)


def test_blocks_are_appended_by_group_and_read_by_layer() -> None:
    tables = BlockTables(TWO_GROUPS)
    tables.extend("t", ([1, 2], [7]))
    tables.extend("t", ([3], []))
    assert tables.of("t", (0, 2, 1)) == ([1, 2, 3], [7], [7])
    assert tables.of("u", (0,)) is None


def test_expired_blocks_keep_their_place() -> None:
    tables = BlockTables(TWO_GROUPS)
    tables.extend("t", ([1, 2], [7, 8, 9]))
    tables.expire("t", 1, 2)
    tables.extend("t", ([], [10]))
    assert tables.of("t", (0, 1)) == ([1, 2], [GONE, GONE, 9, 10])


def test_expiring_more_than_there_is_or_of_nobody() -> None:
    tables = BlockTables(TWO_GROUPS)
    tables.extend("t", ([1], [7]))
    tables.expire("t", 1, 5)
    tables.expire("u", 1, 5)
    assert tables.of("t", (0, 1)) == ([1], [GONE])


def test_a_dropped_transfer_starts_anew() -> None:
    tables = BlockTables(TWO_GROUPS)
    tables.extend("t", ([1], [7]))
    tables.drop("t")
    tables.drop("t")
    assert tables.of("t", (0,)) is None
    tables.extend("t", ([4], [5]))
    assert tables.of("t", (0, 1)) == ([4], [5])


def test_a_table_read_before_grows_along() -> None:
    """A slab is planned with the table as it is when it is gathered: blocks taken back meanwhile must show."""
    tables = BlockTables(TWO_GROUPS)
    tables.extend("t", ([1], [7]))
    found = tables.of("t", (1,))
    tables.expire("t", 1, 1)
    assert found == ([GONE],)
