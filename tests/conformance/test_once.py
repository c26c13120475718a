"""What may be repeated after a lost answer, and who may come in."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from qo.broker.tokens import TokenRecords
from qo.core.access import Scope, Token, digest_of
from qo.core.errors import AlreadyExists, Conflict, NotFound
from qo.core.lane import Start, StartAt
from qo.core.lease import Unit, Want
from qo.core.message import NewMessage, Refused, Stored
from qo.testing.clock import START
from tests.conformance.remote import OverHttp
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
        assert (await store.configure(ORDERS, {"lease": 7}, nonce="configure")).lease.total_seconds() == 7
        await store.pause(ORDERS, True, nonce="pause")
        assert await store.create_group([ORDERS], "audit", Start(), nonce="create_group") is True
        assert await store.seek(ORDERS, "audit", Start(StartAt.NEW), nonce="seek") == 1
        assert await store.delete_group(ORDERS, "audit", nonce="delete_group") is True
        assert await store.cancel([one.id], "default", nonce="cancel") == ["canceled"]
        assert await store.purge_dead(ORDERS, "default", None, nonce="purge_dead") == 0
    await store.pause(ORDERS, False)
    await store.pause(ORDERS, True, nonce="pause")
    assert not (await store.queue(ORDERS)).paused
    for _ in range(2):
        assert await store.delete_queue(ORDERS, nonce="delete_queue") is True
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


async def test_a_push_that_is_repeated_under_its_nonce_answers_the_first_ids(store):
    first = await store.push(messages(2), nonce="n")
    assert await store.push(messages(2), nonce="n") == first
    assert [each.id for each in await claim(store)] == [each.id for each in first]


async def test_a_nonce_binds_the_verb_and_what_it_is_about(store):
    await store.push([message(), message("other")])
    assert await store.purge(ORDERS, nonce="n") == 1
    for again in (
        lambda: store.purge("other", nonce="n"),
        lambda: store.push([message()], nonce="n"),
        lambda: store.pause(ORDERS, True, nonce="n"),
        lambda: store.transact([Unit(pushes=(message(),), nonce="n")]),
    ):
        with pytest.raises(Conflict, match="something else"):
            await again()
    await store.pause(ORDERS, True, nonce="p")
    with pytest.raises(Conflict):
        await store.pause(ORDERS, False, nonce="p")
    assert (await store.depth("other", "default")).ready == 1
    await store.push([message("third")], nonce="k")
    with pytest.raises(Conflict):
        await store.transact([Unit(pushes=(message("third"), message()), nonce="k")])


async def test_a_message_under_the_id_of_another_is_refused(store):
    """Not taken for its repeat: a producer would be told that something is stored that is not."""
    first = message(payload=b"1", key="k")
    later = message(payload=b"2", due_at=START + timedelta(hours=1))
    await store.push([first, later])
    same = [NewMessage(first.id, ORDERS, b"1", key="k"), NewMessage(later.id, ORDERS, b"2", due_at=later.due_at)]
    assert await store.push(same) == [Stored(first.id), Stored(later.id)]
    for other in (
        NewMessage(first.id, "elsewhere", b"1", key="k"),
        NewMessage(first.id, ORDERS, b"1"),
        NewMessage(first.id, ORDERS, b"another payload", key="k"),
        NewMessage(later.id, "elsewhere", b"2", due_at=later.due_at),
    ):
        [answer, stored] = await store.push([other, message("elsewhere")])
        assert isinstance(answer, Refused)
        assert answer.error.field == "id"
        assert isinstance(stored, Stored)
    assert (await store.depth("elsewhere", "default")).ready == 4


async def test_a_token_that_was_used_takes_nothing_more(store):
    await store.push(messages(2))
    [held] = await claim(store, messages=1)
    again = Want(token=held.token, queues=(ORDERS,), messages=5)
    try:
        [answer] = await store.claim([again])
    except Conflict:
        pass
    else:
        assert [each.offset for each in answer.deliveries] == [held.offset]
    assert (await store.depth(ORDERS, "default")).ready == 1


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


@pytest.fixture
def tokens(store):
    return store if isinstance(store, OverHttp) else TokenRecords(store)


async def test_tokens_are_kept_listed_and_removed(tokens, clock):
    await tokens.add_token(first := token("a" * 12, clock))
    clock.move(seconds=1)
    second = token("b" * 12, clock, scopes=(Scope.CONSUME, Scope.ADMIN), prefixes=("orders.", "mail"),
                   expires_at=clock.now())  # fmt: skip
    await tokens.add_token(second)
    assert shown(await tokens.tokens()) == shown([first, second])
    assert shown([await tokens.token(second.id)]) == shown([second])
    assert await tokens.token("c" * 12) is None
    assert await tokens.remove_token(first.id)
    assert not await tokens.remove_token(first.id)
    assert shown(await tokens.tokens()) == shown([second])


def shown(given: Sequence[Token]) -> list[Token]:
    """Without their digests, which a server keeps to itself."""
    return [msgspec.structs.replace(token, digest=b"") for token in given]


async def test_a_token_that_is_added_again_is_the_same_or_refused(tokens, clock):
    first = token("a" * 12, clock)
    for _ in range(2):
        await tokens.add_token(first)
    with pytest.raises(AlreadyExists):
        await tokens.add_token(msgspec.structs.replace(first, digest=digest_of(b"another")))
    assert len(await tokens.tokens()) == 1


async def test_a_digest_is_kept_as_it_was_given(tokens, clock):
    await tokens.add_token(first := token("a" * 12, clock))
    assert (await tokens.token(first.id)).digest in (first.digest, b"")
