"""Steps of a workflow run in order, workflows run side by side.

Prints:

a: fetch parse store
b: fetch parse store
"""

import asyncio

import qo


async def main() -> None:
    async with qo.connect("sqlite:///flows.db") as client:
        flows = client.queue("flows")
        steps = ["fetch", "parse", "store"]
        await flows.push_many([qo.Message(step, kind=step, key=flow) for step in steps for flow in ("a", "b")])
        done: dict[str, list[str]] = {"a": [], "b": []}

        async def handle(delivery: qo.Delivery) -> None:
            done[delivery.key or ""].append(delivery.payload)

        await flows.consume(handle, idle=0.2)
        for flow, seen in done.items():
            print(f"{flow}: {' '.join(seen)}")


asyncio.run(main())
