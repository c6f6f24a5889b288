"""A dashboard's subscription to TangoGQL: prints each message as it comes. Arguments: port, attributes."""

import asyncio
import json
import sys

import websockets

QUERY = """subscription ($names: [String]!) {
  attributes(fullNames: $names) { fullName attribute device value writeValue quality timestamp error { reason desc } }
}"""


async def main(port: str, names: list[str]) -> None:
    async with websockets.connect(
        f"ws://127.0.0.1:{port}/socket", subprotocols=["graphql-ws"], max_size=None
    ) as socket:
        await socket.send(json.dumps({"type": "connection_init", "payload": {}}))
        payload = {"query": QUERY, "variables": {"names": names}}
        await socket.send(json.dumps({"type": "start", "id": "1", "payload": payload}))
        async for message in socket:
            print(message, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
