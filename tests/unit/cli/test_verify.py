"""`pdkv verify` tells a right pair from each kind of wrong one."""

import io

import pytest
from rich.console import Console

from pdkv_connector.cli import verify
from pdkv_connector.errors import PdkvError
from tests.unit.cli.stub_pair import StubPair, running


def _verify(pair: StubPair) -> tuple[bool, str]:
    console = Console(file=io.StringIO(), record=True, width=160)
    with running(pair) as (prefill, decode):
        passed = verify.run(prefill, decode, 3, console)
    return passed, console.export_text()


def test_a_right_pair_passes_and_no_prefix_cache_could_have_helped() -> None:
    pair = StubPair()
    passed, text = _verify(pair)
    assert passed, text
    assert "decodes from KV of" in text
    assert len(set(pair.salts)) == len(pair.salts) == 2 * len(verify.PROMPT_TOKENS)
    assert len({prompt.splitlines()[0] for prompt in pair.prompts}) == len(verify.PROMPT_TOKENS)


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        (StubPair(loads=False), "the decode server prefilled it itself, no KV moved"),
        (StubPair(digests=["aa", "xx"]), "KV differs: layer 1 is xx where bb was expected"),
        (StubPair(digests=["aa"]), "KV differs: 1 layers where 2 were expected"),
        (StubPair(digests=None, prefill_digests=None, has_metrics=False), "cannot tell whether KV moved"),
        (
            StubPair(digests=None, prefill_digests=None, transferred_tokens=(1, 7, 3)),
            "tokens differ: token 1 is 7 where 2 was expected",
        ),
    ],
)
def test_a_wrong_pair_fails_and_says_what_is_wrong(pair: StubPair, says: str) -> None:
    passed, text = _verify(pair)
    assert not passed
    assert f"FAIL prompts 1, 2, 3: {says}" in text


def test_other_text_over_equal_kv_is_a_note() -> None:
    passed, text = _verify(StubPair(transferred_tokens=(1, 7, 3)))
    assert passed
    assert "tokens differ over equal KV" in text


def test_without_digests_equal_tokens_pass_with_a_note() -> None:
    passed, text = _verify(StubPair(digests=None, prefill_digests=None))
    assert passed
    assert "only tokens were compared" in text


def test_a_prefill_error_ends_the_waiting_decode_leg_and_is_quoted() -> None:
    with pytest.raises(PdkvError, match="answered 500: engine is ill"):
        _verify(StubPair(prefill_status=500))


def test_a_prefill_server_without_the_connector_is_named() -> None:
    with pytest.raises(PdkvError, match="does not answer a probe: start it with kv_connector PDKVConnector"):
        _verify(StubPair(answers_probe=False))
