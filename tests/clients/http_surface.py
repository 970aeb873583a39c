"""What a server says outside the bodies: headers, CORS, paths, model names, access log.

    http_surface.py URL KEY ACCESS_LOG

The server must have --served-model-name tiny,alias,org/name:1, --allowed-origins
https://a.example,https://b.example, --root-path /llm and the API key KEY.
"""
import http.client
import json
import socket
import sys
import time
import urllib.parse

url, key, log = sys.argv[1:]
place = urllib.parse.urlparse(url)


def ask(method, path, body=None, **headers):
    c = http.client.HTTPConnection(place.hostname, place.port, timeout=300)
    headers = {k.replace("_", "-"): v for k, v in headers.items()}
    headers.setdefault("Authorization", "Bearer " + key)
    if body is not None:
        headers["Content-Type"] = "application/json"
    c.request(method, path, None if body is None else json.dumps(body), headers)
    r = c.getresponse()
    text = r.read().decode()
    c.close()
    return r.status, r.headers, text


def last_line(**members):
    """The newest line of the log with these members; the line is written after the reply."""
    deadline = time.time() + 120
    while time.time() < deadline:
        lines = [json.loads(x) for x in open(log)]
        lines = [x for x in lines if members.items() <= x.items()]
        if lines:
            return lines[-1]
        time.sleep(0.05)
    raise AssertionError(f"no line with {members}")


def request_ids_are_echoed():
    assert ask("GET", "/health")[1]["X-Request-Id"].startswith("req-")
    assert ask("GET", "/health", X_Request_Id="client-7")[1]["X-Request-Id"] == "client-7"
    assert last_line(client_id="client-7")["path"] == "/health"
    for bad in ("a b", "x" * 129):
        assert ask("GET", "/health", X_Request_Id=bad)[1]["X-Request-Id"].startswith("req-")


def errors_are_in_the_access_log():
    status, _, text = ask("POST", "/v1/chat/completions", {"messages": 3}, X_Request_Id="bad-1")
    line = last_line(client_id="bad-1")
    assert status == line["status"] == 400 and line["error"].startswith("messages: expected"), line
    assert line["error"] == json.loads(text)["error"]["message"]
    assert "error" not in last_line(path="/health")


def unknown_paths_name_the_known_ones():
    status, _, text = ask("POST", "/v1/unknown", {})
    message = json.loads(text)["error"]["message"]
    assert status == 404 and "/v1/chat/completions" in message and "/tokenize" in message, text
    status, _, text = ask("POST", "/v1/unknown", {}, Authorization="Bearer no")
    assert status == 401 and "/tokenize" not in text


def paths_of_other_servers_name_what_to_use():
    for path, use in (("/v1/embeddings", "embeddings are not served"),
                      ("/api/chat", "use POST /v1/chat/completions"),
                      ("/llm/api/generate/", "use POST /v1/completions"),
                      ("/generate", "use POST /v1/completions"),
                      ("/v1/engines/tiny/completions", "use POST /v1/completions"),
                      ("/chat/completions", "base URL of the client must end with /v1"),
                      ("/models/tiny", "use GET /v1/models"),
                      ("/v1/v1/chat/completions", "/v1 twice"),
                      ("/v1", "base URL"), ("/healthz", "use GET /health"),
                      ("/v1/messages", "use POST /v1/chat/completions"),
                      ("/docs", "use GET /openapi.json")):
        status, _, text = ask("POST", path, {})
        error = json.loads(text)["error"]
        assert status == 404 and error["code"] == "not_found", (path, text)
        assert use in error["message"] and len(error["message"]) < 160, (path, text)


def slashes_do_not_matter():
    for path in ("//v1/models", "/v1/models/", "/v1//models//", "/v1/models/tiny/", "//", "/health/",
                 "/llm//v1/models/", "//llm/"):
        assert ask("GET", path)[0] == 200, path
    assert ask("POST", "//v1/completions/", {"prompt": "a", "max_tokens": 1})[0] == 200


def options_names_the_methods():
    for path, methods in (("/", "GET, HEAD, OPTIONS"), ("/v1/models/", "GET, HEAD, OPTIONS"),
                          ("/v1/completions", "POST, OPTIONS"), ("/llm/health", "GET, HEAD, OPTIONS")):
        status, h, text = ask("OPTIONS", path)
        assert (status, h["Allow"], text) == (200, methods, ""), (path, status, h)
    assert ask("OPTIONS", "/", Authorization="")[0] == 200
    assert ask("OPTIONS", "/v1/models", Authorization="")[0] == 401
    assert ask("OPTIONS", "/v1/unknown")[0] == 404
    for target in ("/", "*"):
        with socket.create_connection((place.hostname, place.port), timeout=30) as s:
            s.sendall(b"OPTIONS " + target.encode() + b" HTTP/1.0\r\n\r\n")
            assert s.recv(4096).startswith(b"HTTP/1.1 200 "), target


def origins_are_allowed_by_name():
    question = {"Access_Control_Request_Method": "POST",
                "Access_Control_Request_Headers": "authorization, x-custom", "Authorization": ""}
    for origin in ("https://a.example", "https://b.example"):
        status, h, _ = ask("OPTIONS", "/v1/chat/completions", Origin=origin, **question)
        assert status == 200 and h["Access-Control-Allow-Origin"] == origin, (status, h)
        assert "POST" in h["Access-Control-Allow-Methods"]
        assert h["Access-Control-Allow-Headers"] == "authorization, x-custom"
        status, h, _ = ask("GET", "/v1/models", Origin=origin)
        assert status == 200 and h["Access-Control-Allow-Origin"] == origin and h["Vary"] == "Origin"
    for origin in ("https://c.example", "https://a.example.org", "https://a"):
        status, h, _ = ask("OPTIONS", "/v1/chat/completions", Origin=origin, **question)
        assert status == 401 and "Access-Control-Allow-Origin" not in h, (status, h)
        assert "Access-Control-Allow-Origin" not in ask("GET", "/health", Origin=origin)[1]


def paths_may_begin_with_the_root_path():
    for path in ("/v1/models", "/llm/v1/models", "/llm", "/llm/"):
        assert ask("GET", path)[0] == 200, path
    for path in ("/llmv1/models", "/llm/llm/v1/models"):
        assert ask("GET", path)[0] == 404, path
    api = json.loads(ask("GET", "/openapi.json")[2])
    assert api["servers"] == [{"url": "/llm"}]


def the_model_has_several_names():
    models = json.loads(ask("GET", "/v1/models")[2])["data"]
    assert [m["id"] for m in models] == ["tiny", "alias", "org/name:1"], models
    for path in ("alias", "org/name:1", "org%2Fname%3A1"):
        status, _, text = ask("GET", "/v1/models/" + path)
        assert status == 200 and json.loads(text)["id"] == urllib.parse.unquote(path), text
    for path in ("b", "org", "org/name", "org%2Fb", "org/name:1/x"):
        status, _, text = ask("GET", "/v1/models/" + path)
        error = json.loads(text)["error"]
        assert status == 404 and error["code"] == "model_not_found", text
        assert f'"{urllib.parse.unquote(path)}"' in error["message"], text
    for name, wanted in (("tiny", 200), ("alias", 200), ("tiny,alias", 404), ("other", 404)):
        status, _, text = ask("POST", "/v1/completions",
                              {"model": name, "prompt": "1 + 1", "max_tokens": 1})
        assert status == wanted and (status != 200 or json.loads(text)["model"] == "tiny"), text


def replies(status_class):
    for line in ask("GET", "/metrics")[2].splitlines():
        if line.startswith("cinch_http_replies_total{") and f'status="{status_class}"' in line:
            return int(line.split()[-1])


def the_preface_of_http2_is_the_clients_error():
    before = replies("5xx")
    with socket.create_connection((place.hostname, place.port), timeout=300) as s:
        s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        answer = b""
        while chunk := s.recv(4096):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 400 ") and b"HTTP/1.1" in answer[20:], answer
    assert replies("5xx") == before


def metric_names_follow_prometheus():
    """promtool's rules for names, units and types. vLLM's names are vLLM's."""
    types = {}
    for line in ask("GET", "/metrics")[2].splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in types, name
            types[name] = kind
    assert sum(n.startswith("cinch_") for n in types) > 20
    for name, kind in types.items():
        if name.startswith("vllm:"):
            continue
        assert ":" not in name and name.islower(), name
        assert (kind == "counter") == name.endswith("_total"), (name, kind)
        assert not name.endswith(("_count", "_sum", "_bucket")), name
        assert kind not in name.split("_"), name


for use in (request_ids_are_echoed, errors_are_in_the_access_log,
            unknown_paths_name_the_known_ones, paths_of_other_servers_name_what_to_use,
            slashes_do_not_matter, options_names_the_methods, origins_are_allowed_by_name,
            paths_may_begin_with_the_root_path, the_model_has_several_names,
            the_preface_of_http2_is_the_clients_error, metric_names_follow_prometheus):
    use()
    print(use.__name__)
