"""What may be repeated after a lost answer, and who may come in."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from qo.core.access import Scope, Token, digest_of
from qo.core.errors import Conflict, NotFound
from qo.core.lane import Start, StartAt
from qo.core.lease import Unit
from tests.conformance.saying import ORDERS, buried, claim, done, message, messages, payloads, settle


async def test_a_purge_that_is_repeated_under_its_nonce_leaves_what_came_since(store):
    await store.push(messages(3))
    assert await store.purge(ORDERS, nonce="once") == 3
    await store.push(messages(2))
    assert await store.purge(ORDERS, nonce="once") == 3
    assert (await store.depth(ORDERS, "default")).ready == 2
    assert await store.purge(ORDERS) == 2


async def test_a_retry_of_dead_letters_under_one_nonce_gives_the_same_ids(store):
    await store.push(messages(2))
    await settle(store, *map(buried, await claim(store)))
    first = await store.retry_dead(ORDERS, "default", None, nonce="once")
    assert len(first) == 2
    assert await store.retry_dead(ORDERS, "default", None, nonce="once") == first
    assert len(await claim(store)) == 2


async def test_every_verb_that_arranges_gives_its_first_answer_again(store):
    await store.push([one := message(), message()])
    for _ in range(2):
        assert (await store.configure(ORDERS, {"lease": 7}, nonce="n")).lease.total_seconds() == 7
        await store.pause(ORDERS, True, nonce="n")
        assert await store.create_group([ORDERS], "audit", Start(), nonce="n") is True
        assert await store.seek(ORDERS, "audit", Start(StartAt.NEW), nonce="n") == 1
        assert await store.delete_group(ORDERS, "audit", nonce="n") is True
        assert await store.cancel([one.id], "default", nonce="n") == ["canceled"]
        assert await store.purge_dead(ORDERS, "default", None, nonce="n") == 0
    await store.pause(ORDERS, False)
    await store.pause(ORDERS, True, nonce="n")
    assert not (await store.queue(ORDERS)).paused
    for _ in range(2):
        assert await store.delete_queue(ORDERS, nonce="n") is True
        await store.push([message()])
    assert (await store.depth(ORDERS, "default")).ready == 2


async def test_what_was_refused_is_not_remembered(store):
    with pytest.raises(NotFound):
        await store.purge("nowhere", nonce="n")
    await store.push([message("nowhere")])
    assert await store.purge("nowhere", nonce="n") == 1


async def test_a_nonce_of_another_batch_is_refused(store):
    await store.push(messages(2), nonce="n")
    with pytest.raises(Conflict, match="something else"):
        await store.push(messages(3), nonce="n")
    assert payloads(await claim(store)) == [b"0", b"1"]


async def test_a_push_with_the_nonce_of_a_unit_is_refused(store):
    await store.push([message()])
    [held] = await claim(store)
    unit = Unit(settlements=(done(held),), pushes=(message(),), nonce="n")
    await store.transact([unit])
    with pytest.raises(Conflict, match="something else"):
        await store.push([message()], nonce="n")


def token(id: str, clock, **options) -> Token:
    options.setdefault("scopes", (Scope.PRODUCE,))
    return Token(id=id, name=f"token {id}", digest=digest_of(id.encode()), created_at=clock.now(), **options)


async def test_tokens_are_kept_listed_and_removed(store, clock):
    await store.add_token(first := token("a" * 12, clock))
    clock.move(seconds=1)
    second = token("b" * 12, clock, scopes=(Scope.CONSUME, Scope.ADMIN), prefixes=("orders.", "mail"),
                   expires_at=clock.now())  # fmt: skip
    await store.add_token(second)
    assert shown(await store.tokens()) == shown([first, second])
    assert shown([await store.token(second.id)]) == shown([second])
    assert await store.token("c" * 12) is None
    assert await store.remove_token(first.id)
    assert not await store.remove_token(first.id)
    assert shown(await store.tokens()) == shown([second])


def shown(tokens: Sequence[Token]) -> list[Token]:
    """Without their digests, which a server keeps to itself."""
    return [msgspec.structs.replace(token, digest=b"") for token in tokens]


async def test_a_digest_is_kept_as_it_was_given(store, clock):
    await store.add_token(first := token("a" * 12, clock))
    assert (await store.token(first.id)).digest in (first.digest, b"")
