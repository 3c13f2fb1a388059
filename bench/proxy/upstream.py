"""A provider that answers at once: `python -m bench.proxy.upstream PORT`.

The body of a request says how many chunks it wants and how many seconds apart, as its model:
`chunks-20-0.05`. Each chunk is an event of OpenAI's chat API.
"""

import asyncio
import json
import re
import sys

_MODEL = re.compile(rb'"model": ?"chunks-(\d+)-([\d.]+)"')
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _event(text: str, end: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": end}
    data = {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    return _chunk(f"data: {json.dumps(data)}\n\n".encode())


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: *(\d+)", head.lower())
            body = await reader.readexactly(int(length[1])) if length else b""
            form = _MODEL.search(body)
            number, gap = (int(form[1]), float(form[2])) if form else (1, 0.0)
            writer.write(_HEAD)
            for place in range(number):
                writer.write(_event(f"word {place} "))
                await asyncio.sleep(gap)
            writer.write(_event("end.", "stop") + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, OSError):
        writer.close()


async def main(port: int) -> None:
    """Serve until the process is stopped."""
    server = await asyncio.start_server(_serve, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
