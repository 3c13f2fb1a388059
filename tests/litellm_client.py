"""A program that knows only LiteLLM: it asks through a base URL, and prints the answers as JSON.

A test runs it in the environment of scripts/litellm; it imports nothing of keepthread.
"""

import asyncio
import json
import sys
from typing import Any

import litellm  # pyright: ignore[reportMissingImports]

QUESTIONS = ("Where does Ada live?", "Thanks")


def main(base: str) -> None:
    """Hold a conversation with each provider, whole and streamed."""
    library: Any = litellm
    library.telemetry = False
    answers: dict[str, list[str]] = {}
    for model, url in (("openai/m", f"{base}/v1"), ("anthropic/claude", base)):
        history: list[dict[str, str]] = []
        for number, question in enumerate((f"Hello, {model}", *QUESTIONS)):
            history.append({"role": "user", "content": question})
            given = {"model": model, "messages": history, "api_base": url, "api_key": "sk-litellm"}
            if number == 1:
                chunks = library.completion(**given, max_tokens=99, stream=True)
                text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            elif number == 2:
                answer = asyncio.run(library.acompletion(**given, max_tokens=99))
                text = answer.choices[0].message.content
            else:
                answer = library.completion(**given, max_tokens=99)
                text = answer.choices[0].message.content
            history.append({"role": "assistant", "content": text})
            answers.setdefault(model, []).append(text)
    sys.stdout.write(f"\n{json.dumps(answers)}\n")


main(sys.argv[1])
