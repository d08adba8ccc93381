"""A line, in user space, slow and lossy unless told otherwise:
proxy.py LISTEN_HOST PORT TO_HOST [DELAY LOST].

Each piece of a stream arrives DELAY seconds later; of every hundred pieces LOST have to
be sent again, as TCP does with a lost packet, and those behind them wait. Stopped by
SIGSTOP it is a line that is cut: peers get neither data nor the news of it.
"""

from __future__ import annotations

import asyncio
import random
import sys

DELAY = float(sys.argv[4]) if len(sys.argv) > 4 else 0.2
LOST = int(sys.argv[5]) if len(sys.argv) > 5 else 5
RESENT = 2 * DELAY  # there and back: what a retransmission costs


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1000)

    async def deliver() -> None:
        while True:
            due, piece = await queue.get()
            await asyncio.sleep(due - loop.time())
            if not piece:
                writer.close()
                return
            if random.randrange(100) < LOST:
                await asyncio.sleep(RESENT)
            writer.write(piece)
            await writer.drain()

    delivery = asyncio.create_task(deliver())
    try:
        while piece := await reader.read(1460):
            await queue.put((loop.time() + DELAY, piece))
    except OSError:
        pass
    await queue.put((loop.time() + DELAY, b""))
    try:
        await delivery
    except OSError:
        writer.close()


async def main() -> None:
    host, port, to = sys.argv[1], int(sys.argv[2]), sys.argv[3]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(to, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))

    server = await asyncio.start_server(serve, host, port)
    async with server:
        print("ready", flush=True)
        await server.serve_forever()


asyncio.run(main())
