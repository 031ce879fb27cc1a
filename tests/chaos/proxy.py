"""A TCP proxy that breaks connections: SIGUSR1 drops them all at once; SIGUSR2 drops each instead of its next answer, so that
what was asked happened and nobody was told.
"""

import argparse
import asyncio
import contextlib
import signal
from typing import Final


class Side(asyncio.Protocol):
    """One end of a proxied connection; `other` is the opposite end, once it is open."""

    def __init__(self, other: "Side | None" = None) -> None:
        self.other = other
        self.transport: asyncio.Transport | None = None
        self.early: list[bytes] = []
        self.swallow = False
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.ended:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.swallow:
            self.abort()
        elif self.other is None or self.other.transport is None:
            self.early.append(data)
        else:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        if self.other is not None and not self.other.ended:
            self.other.ended = True
            if self.other.transport is not None:
                self.other.transport.close()

    def abort(self) -> None:
        for side in (self, self.other):
            if side is not None:
                side.ended = True
                if side.transport is not None:
                    side.transport.abort()


CLIENTS: Final[set["Client"]] = set()
TASKS: Final[set[asyncio.Task[None]]] = set()


class Client(Side):
    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        CLIENTS.add(self)
        task = asyncio.get_running_loop().create_task(self.connect())
        TASKS.add(task)
        task.add_done_callback(TASKS.discard)

    async def connect(self) -> None:
        server = Side(self)
        try:
            await asyncio.get_running_loop().create_connection(lambda: server, "127.0.0.1", self.port)
        except OSError:
            self.abort()
            return
        assert server.transport is not None
        if self.ended:
            server.transport.abort()
            return
        self.other = server
        for data in self.early:
            server.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        CLIENTS.discard(self)
        super().connection_lost(exc)


def drop() -> None:
    for client in list(CLIENTS):
        client.abort()


def swallow() -> None:
    for client in CLIENTS:
        if client.other is not None:
            client.other.swallow = True


async def main(listen: int, to: int) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, drop)
    loop.add_signal_handler(signal.SIGUSR2, swallow)
    server = await loop.create_server(lambda: Client(to), "127.0.0.1", listen)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", type=int, required=True)
    parser.add_argument("--to", type=int, required=True)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(options.listen, options.to))
