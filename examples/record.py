"""Ask vLLM, which records traces meanwhile, and keep what they do not have: texts and labels.

Run the first line's output where vLLM is installed, this script anywhere, and the last line when
the server has ended. A line of questions.jsonl is {"question": "...", "references": ["..."]}:

    python -m store record traces.zarr --vllm Qwen/Qwen3-8B --layers 12,18,24
    python examples/record.py questions.jsonl http://127.0.0.1:8000/v1 responses.jsonl
    python -m store record traces.zarr --responses responses.jsonl
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

N_AT_ONCE = 16


def main(questions: str, url: str, responses: str) -> None:
    """Write a line for each question: what it knows, and the server's response beside it."""
    model = call(f"{url}/models")["data"][0]["id"]

    def ask(line: str) -> dict:
        known = json.loads(line)
        body = {"model": model, "prompt": known["question"], "max_tokens": 64, "temperature": 0}
        body |= {"logprobs": 0, "return_token_ids": True}  # of the answer; joined, and compared
        return known | {"response": call(f"{url}/completions", json.dumps(body).encode())}

    lines = [line for line in Path(questions).read_text().splitlines() if line.strip()]
    with ThreadPoolExecutor(N_AT_ONCE) as threads, Path(responses).open("w") as file:
        for found in threads.map(ask, lines):
            file.write(json.dumps(found) + "\n")
    print(f"{responses}: {len(lines)} responses")


def call(url: str, body: bytes | None = None) -> dict:
    request = Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - given
    with urlopen(request) as answer:  # noqa: S310
        return json.load(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
