"""litellm's proxy in front of a server: a chat and a response, whole and streamed.

python3 litellm_proxy.py PROXY URL DIR: the program of the proxy, the server, a folder for files."""
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import openai

proxy, url, folder = sys.argv[1:]
START_S = 240  # most of it imports packages


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(port):
    config = {"model_list": [{"model_name": "tiny", "litellm_params": {
        "model": "openai/tiny", "api_base": url + "/v1", "api_key": "none"}}],
        "general_settings": {"master_key": "sk-proxy"}}
    path = os.path.join(folder, "litellm.yaml")
    with open(path, "w") as f:
        json.dump(config, f)  # JSON is YAML
    env = dict(os.environ, LITELLM_LOCAL_MODEL_COST_MAP="True")
    log = open(os.path.join(folder, "litellm.log"), "w")
    return subprocess.Popen([proxy, "--config", path, "--host", "127.0.0.1", "--port", str(port)],
                            stdout=log, stderr=log, env=env, cwd=folder)


def wait_until_ready(process, port):
    for _ in range(START_S * 2):
        assert process.poll() is None, "the proxy did not start"
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5)
            return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError("the proxy did not start")


def chats(client):
    ask = dict(model="tiny", messages=[{"role": "user", "content": "Sort: 3 1 2"}], temperature=0,
               max_tokens=16)
    whole = client.chat.completions.create(**ask)
    assert whole.choices[0].finish_reason == "length", whole
    assert whole.usage.completion_tokens == 16, whole.usage
    text = whole.choices[0].message.content or ""
    pieces = [c.choices[0].delta.content or "" for c in
              client.chat.completions.create(stream=True, **ask) if c.choices]
    assert "".join(pieces) == text, (pieces, text)


def responses(client):
    ask = dict(model="tiny", input="Sort: 3 1 2", temperature=0, max_output_tokens=16)
    whole = client.responses.create(**ask)
    assert whole.status == "incomplete" and whole.usage.output_tokens == 16, whole
    events = list(client.responses.create(stream=True, **ask))
    kinds = [e.type for e in events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.incomplete", kinds
    assert events[-1].response.output_text == whole.output_text, (events[-1], whole)


def main():
    port = free_port()
    process = start(port)
    try:
        wait_until_ready(process, port)
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-proxy",
                               max_retries=0)
        chats(client)
        responses(client)
    finally:
        process.terminate()
        process.wait()
    print("litellm's proxy: ok")


main()
