"""Ask a served model, and print its answer as it comes and what the detectors say of it.

Run it in the checkout; examples/library.py makes the file, and the server prints URL and token:

    python -m train serve --run guard.safetensors --model store/sources/example --dtype fp32
    python examples/serve.py URL TOKEN "Does Ada like chess?"

OpenAI's own client is asked the same way: its answers have `hallucination` as well.
"""

import json
import sys
from urllib.request import Request, urlopen


def main(url: str, token: str, question: str) -> None:
    """Stream an answer; then score another one."""
    body = {"prompt": question, "max_tokens": 12, "stream": True}
    with post(f"{url}/completions", token, body) as lines:
        for line in lines:
            text = line.decode().removeprefix("data: ").strip()
            if not text or text == "[DONE]":
                continue
            event = json.loads(text)
            print(event["choices"][0]["text"], end="", flush=True)
            verdict = event.get("hallucination")
    print(*(f"\n{name}: {one}" for name, one in verdict.items()), sep="")

    given = {"prompt": question, "answer": "yes"}
    with post(url.replace("/v1", "/score"), token, given) as answer:
        print("had it said yes:", json.load(answer)["hallucination"])


def post(url: str, token: str, body: dict):
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - given
    return urlopen(request)  # noqa: S310


if __name__ == "__main__":
    main(*sys.argv[1:])
