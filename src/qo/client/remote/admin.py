"""admin: the verbs that arrange things, each with a key so that it can be repeated."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from qo.client.remote.calls import RemotePart, call
from qo.core.lane import Filter, Start
from qo.core.message import MessageId, id_text
from qo.core.outcome import CancelAnswer
from qo.wire.claims import write_start
from qo.wire.jobs import CANCEL_LIMIT, CanceledOne, CanceledReply
from qo.wire.operations.groups import CREATE_GROUP_ANYWHERE
from qo.wire.operations.jobs import CANCEL, CANCEL_MANY
from qo.wire.queues import CreatedReply


class RemoteAdmin(RemotePart):
    """Verbs that are more than one operation; all others come from their declarations."""

    PART = "admin"

    async def create_group(
        self, queues: Sequence[str] | Filter, group: str, start: Start, *, nonce: str | None = None
    ) -> bool:
        where = (
            {"namespace": queues.namespace, "task": queues.task}
            if isinstance(queues, Filter)
            else {"queues": list(queues)}
        )
        fields = {"group": group, "start": write_start(start), **where}
        answer = await call(self._transport, CREATE_GROUP_ANYWHERE, fields, nonce)
        return msgspec.json.decode(answer.body, type=CreatedReply).created

    async def cancel(self, ids: Sequence[MessageId], group: str, *, nonce: str | None = None) -> Sequence[CancelAnswer]:
        """A token that is limited to some queues may cancel one by one, and not many at once."""
        if len(ids) == 1:
            answer = await call(self._transport, CANCEL, {"id": id_text(ids[0]), "group": group}, nonce)
            return [msgspec.json.decode(answer.body, type=CanceledOne).answer]
        answers: list[CancelAnswer] = []
        for start in range(0, len(ids), CANCEL_LIMIT):
            texts = [id_text(each) for each in ids[start : start + CANCEL_LIMIT]]
            own = nonce if nonce is None or start == 0 else f"{nonce}-{start}"
            answer = await call(self._transport, CANCEL_MANY, {"ids": texts, "group": group}, own)
            answers += msgspec.json.decode(answer.body, type=CanceledReply).answers
        return answers
