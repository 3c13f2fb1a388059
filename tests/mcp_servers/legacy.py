"""A server of the older protocol, over HTTP: it keeps sessions, and forgets them when asked to."""

import json
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SESSIONS: set[str] = set()
SCHEMA = {"type": "object", "properties": {}}
TOOLS = [{"name": name, "inputSchema": SCHEMA} for name in ("greet", "forget")]


class Legacy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status: int, body: Any = None, **headers: str) -> None:
        data = json.dumps(body).encode() if body is not None else b""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method = message["method"]
        reply = {"jsonrpc": "2.0", "id": message.get("id")}
        if method == "initialize":
            SESSIONS.add(session := uuid.uuid4().hex)
            result = {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {},
                "serverInfo": {"name": "legacy", "version": "0"},
            }
            self.answer(200, {**reply, "result": result}, mcp_session_id=session)
        elif method == "server/discover":
            self.answer(400, {**reply, "error": {"code": -32601, "message": "no such method"}})
        elif self.headers["mcp-session-id"] not in SESSIONS:
            self.answer(404)
        elif "id" not in message:
            self.answer(202)
        else:
            self.answer(200, {**reply, "result": self.result(method, message.get("params", {}))})

    def result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "tools/list":
            return {"tools": TOOLS}
        if params["name"] == "forget":
            SESSIONS.clear()
        return {"content": [{"type": "text", "text": f"{len(SESSIONS)} known"}]}

    def do_GET(self) -> None:
        self.answer(405)

    def do_DELETE(self) -> None:
        SESSIONS.discard(self.headers["mcp-session-id"])
        self.answer(200)

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Legacy) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
