"""Whatever somebody sends as a key or a token: the checks say no, and nothing else."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from runward.core.kernel.actor import Scope
from runward.engine import keys
from runward.engine.callers import Allow, Grant
from runward.engine.tokens import MAX_LENGTH, Signer, is_token

SIGNER = Signer("a secret key of the tests")
GRANT = Grant(id="1", of="2", scope=Scope(tenant="acme"), allows=frozenset(Allow), expires_at=1, by="3", decides_as=None)
TOKEN = SIGNER.token(GRANT)
HOSTILE = (
    st.text(max_size=80)
    | st.text(st.characters(categories=["Cs", "Cc", "Lo"]), max_size=40)
    | st.tuples(st.integers(0, len(TOKEN)), st.text(max_size=6)).map(lambda cut: TOKEN[: cut[0]] + cut[1] + TOKEN[cut[0] :])
    | st.tuples(st.sampled_from(["rwt_", "rw_", "rw_0123456789abcdef_", "rwt_."]), st.text(max_size=60)).map("".join)
)


@given(HOSTILE)
@example("")
@example("x" * 10_000_000)
@example("rwt_" + "A" * 10_000_000 + ".A")
@example("rw_0123456789abcdef_" + "A" * 10_000_000)
@example(TOKEN + "\n")
@example(TOKEN.replace("A", "\uff21", 1))
@example("rwt_\ud800.\ud800")
@example("rw_\u0661123456789abcdef_" + "A" * 43)
@example("." * (MAX_LENGTH - 10))
def test_no_text_makes_a_check_of_it_raise(text: str) -> None:
    assert SIGNER.grant(text) == (GRANT if text == TOKEN else None)
    assert is_token(text) in (True, False)
    if keys.is_key(text):
        assert len(keys.hash_of(text)) == 64 and text.isascii()


@given(st.text(max_size=80), st.text(max_size=80))
def test_hashes_are_compared_whatever_they_are(one: str, other: str) -> None:
    assert keys.is_same(one, one) and keys.is_same(one, other) == (one == other)


def test_the_token_itself_is_one() -> None:
    assert SIGNER.grant(TOKEN) == GRANT and Signer("another secret key").grant(TOKEN) is None
