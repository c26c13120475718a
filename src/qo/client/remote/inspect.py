"""inspect: bounded reads, asked of a server."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from qo.client.remote.calls import RemotePart
from qo.client.remote.workers import demand_there, remote_scaling
from qo.core.scaling import Demand


class RemoteInspect(RemotePart):
    """Reads that are not one operation; all others come from their declarations."""

    PART = "inspect"

    async def demand(self, queues: Sequence[str], group: str, kinds: Collection[str] | None) -> Demand:
        said = await remote_scaling(self._transport, queues, group, kinds)
        return Demand() if said is None else demand_there(said)

    async def ready(self) -> None:
        await self._transport.call("GET", "/readyz")
