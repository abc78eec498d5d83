"""Golden byte vectors: what crosses the wire may not change under one protocol version."""

from __future__ import annotations

from typing import get_args

import pytest

from pdkv_connector.errors import ProtocolError
from pdkv_connector.session import messages as m
from pdkv_connector.types import Credit, Span

INSTANCE = "d0-5f1c"
LAYERS = (
    m.LayerFact("model.layers.0", 2, Span(4, 8), 128, "bfloat16", 0),
    m.LayerFact("model.layers.1", 2, Span(4, 8), 128, "bfloat16", 4096),
)
FACTS = m.Facts("some/model", "5f1c", 8, 1, 2, 0, 1, ("raw", "split"), LAYERS)
RING = m.RingSpec(0x7F00_1234_5000, 8 << 20, 16, 3, "VRAM")
WANTS = (m.Want((0, 1, 2), Span(128, 7680), Span(0, 4)), m.Want((3,), Span(7168, 7680), Span(0, 4)))
CREDITS = (Credit(0, 1), Credit(15, 300))

MESSAGES: tuple[m.Message, ...] = (
    m.Hello("decode-0", 2, 2, FACTS, "nixl", b"\x00\xff", RING, (0, 2_000_000_000)),
    m.Welcome("prefill-0", 2, FACTS, ("split", "raw"), b"\x01", 30.0),
    m.Refuse("t-1", 2, m.RefuseCode.PROMPT_DIFFERS, "prompt digest ab, expected cd"),
    m.Register("t-1", 2, 7681, "abcd", 2, WANTS, CREDITS),
    m.Alive((m.Standing("t-1", 2, m.ProducerState.STREAMING, 4096), m.Standing("", 0, m.ProducerState.UNKNOWN, 0))),
    m.Slab("t-1", 2, 70_000, 1, Span(0, 12), Span(128, 640), Credit(15, 300), "split", 7_654_321, (1 << 64) - 1),
    m.Ack("t-1", 2, 9, (Span(0, 4), Span(6, 7)), CREDITS, CREDITS[1:]),
    m.Heartbeat((("t-1", 2), ("t-ü", 0))),
    m.Delivered("t-1", 2, True),
    m.Abort("t-1", 2, "client went away"),
    m.Closed("t-1", 2, ("5f1c", "")),
)

GOLDEN: dict[str, tuple[str, ...]] = {
    "Hello": (
        "9303a764302d3566316399a568656c6c6fa86465636f64652d30020299aa736f6d652f6d6f64656ca4356631630801",
        "02000192a3726177a573706c69749296ae6d6f64656c2e6c61796572732e3002920408cc80a862666c6f6174313600",
        "96ae6d6f64656c2e6c61796572732e3102920408cc80a862666c6f61743136cd1000a46e69786cc40200ff95cf0000",
        "7f0012345000ce008000001003a45652414d9200ce77359400",
    ),
    "Welcome": (
        "9303a764302d3566316397a777656c636f6d65a970726566696c6c2d300299aa736f6d652f6d6f64656ca43566316308",
        "0102000192a3726177a573706c69749296ae6d6f64656c2e6c61796572732e3002920408cc80a862666c6f6174313600",
        "96ae6d6f64656c2e6c61796572732e3102920408cc80a862666c6f61743136cd100092a573706c6974a3726177c40101",
        "cb403e000000000000",
    ),
    "Refuse": (
        "9303a764302d3566316395a6726566757365a3742d3102ae70726f6d70745f64696666657273bd70726f6d7074206469",
        "676573742061622c206578706563746564206364",
    ),
    "Register": (
        "9303a764302d3566316398a87265676973746572a3742d3102cd1e01a4616263640292939300010292cc80cd1e009200",
        "0493910392cd1c00cd1e0092000492920001920fcd012c",
    ),
    "Alive": (
        "9303a764302d3566316392a5616c6976659294a3742d3102a973747265616d696e67cd100094a000a7756e6b6e6f776e",
        "00",
    ),
    "Slab": (
        "9303a764302d356631639ba4736c6162a3742d3102ce000111700192000c92cc80cd0280920fcd012ca573706c6974ce",
        "0074cbb1cfffffffffffffffff",
    ),
    "Ack": ("9303a764302d3566316397a361636ba3742d3102099292000492060792920001920fcd012c91920fcd012c",),
    "Heartbeat": ("9303a764302d3566316392a96865617274626561749292a3742d310292a4742dc3bc00",),
    "Delivered": ("9303a764302d3566316394a964656c697665726564a3742d3102c3",),
    "Abort": ("9303a764302d3566316394a561626f7274a3742d3102b0636c69656e742077656e742061776179",),
    "Closed": ("9303a764302d3566316394a6636c6f736564a3742d310292a435663163a0",),
}

by_name = pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)


def golden(message: m.Message) -> bytes:
    return bytes.fromhex("".join(GOLDEN[type(message).__name__]))


def test_every_message_has_a_vector() -> None:
    assert {kind.__name__ for kind in get_args(m.Message)} == set(GOLDEN)


@by_name
def test_encode_gives_the_golden_bytes(message: m.Message) -> None:
    assert m.encode(INSTANCE, message).hex() == golden(message).hex()


@by_name
def test_decode_gives_the_message(message: m.Message) -> None:
    frame = m.decode(golden(message))
    assert (frame.version, frame.instance, frame.message) == (m.PROTOCOL_VERSION, INSTANCE, message)


@by_name
def test_no_corrupt_byte_goes_unseen(message: m.Message) -> None:
    """Negative control: with any byte changed, a frame is refused or means something else."""
    good = golden(message)
    sound = m.decode(good)
    for position in range(len(good)):
        for flip in (0x01, 0x80, 0xFF):
            corrupt = bytearray(good)
            corrupt[position] ^= flip
            try:
                decoded = m.decode(bytes(corrupt))
            except ProtocolError:
                continue
            assert decoded != sound, f"byte {position} xor {flip:#x} went unseen"


@by_name
def test_truncated_frames_are_refused(message: m.Message) -> None:
    good = golden(message)
    for length in range(len(good)):
        with pytest.raises(ProtocolError):
            m.decode(good[:length])


def test_another_protocol_version_is_refused_by_number() -> None:
    frame = bytearray(golden(MESSAGES[8]))
    assert frame[1] == m.PROTOCOL_VERSION
    frame[1] = 7
    with pytest.raises(ProtocolError, match="version 7, this side speaks 3"):
        m.decode(bytes(frame))


def test_frames_beyond_their_bound_are_refused_on_both_sides() -> None:
    with pytest.raises(ProtocolError, match="exceeds the bound"):
        m.decode(bytes(m.MAX_FRAME_BYTES + 1))
    with pytest.raises(ProtocolError, match="Heartbeat frame of"):
        m.encode(INSTANCE, m.Heartbeat((("t" * 256, 0),) * 4096 * 2))
