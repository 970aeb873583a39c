"""Uses files and batches through the openai package, with the calls of its documentation.

    openai_batches.py URL KEY

The server must serve the bundled checkpoint, with a spool and the API key KEY.
"""
import json
import sys
import time

import openai
from openai_requests import expect


def line(custom_id, question, **more):
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0,
            "max_tokens": 400, **more}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def upload(client, lines):
    text = "".join(json.dumps(x) + "\n" for x in lines)
    return client.files.create(file=("requests.jsonl", text.encode()), purpose="batch",
                               expires_after={"anchor": "created_at", "seconds": 86400})


def start(client, file_id, **more):
    return client.batches.create(input_file_id=file_id, endpoint="/v1/chat/completions",
                                 completion_window="24h", **more)


def wait(client, batch, *ends):
    deadline = time.time() + 600
    while batch.status not in ends and time.time() < deadline:
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    assert batch.status in ends, batch
    return batch


def files(client):
    f = upload(client, [line("a", "Sort: 3 1 2")])
    assert f.object == "file" and f.purpose == "batch" and f.filename == "requests.jsonl"
    assert client.files.retrieve(f.id).bytes == f.bytes == len(client.files.content(f.id).content)
    assert f.id in [x.id for x in client.files.list(purpose="batch")]
    assert client.files.delete(f.id).deleted is True
    expect(openai.NotFoundError, lambda: client.files.retrieve(f.id), status_code=404)
    expect(openai.NotFoundError, lambda: client.files.content("file-../../etc/passwd"))


def a_batch_runs_to_its_end(client):
    lines = [line(f"product {i}", f"Compute {11 + i} * 34 by hand.") for i in range(6)]
    lines.insert(3, line("at fault", "Sort: 1", top_p=3))
    b = start(client, upload(client, lines).id, metadata={"name": "products"})
    assert b.object == "batch" and b.metadata == {"name": "products"}
    assert b.status in ("validating", "in_progress")
    b = wait(client, b, "completed")
    assert (b.request_counts.total, b.request_counts.completed, b.request_counts.failed) \
        == (7, 6, 1), b.request_counts
    for earlier, later in ((b.created_at, b.in_progress_at), (b.in_progress_at, b.finalizing_at),
                           (b.finalizing_at, b.completed_at)):
        assert earlier <= later, b
    answers = [json.loads(x) for x in client.files.content(b.output_file_id).text.splitlines()]
    assert {a["custom_id"] for a in answers} == {f"product {i}" for i in range(6)}
    for a in answers:
        i = int(a["custom_id"].split()[1])
        assert a["response"]["status_code"] == 200 and a["error"] is None
        content = a["response"]["body"]["choices"][0]["message"]["content"]
        assert str((11 + i) * 34) in content, (i, content)
        assert "kv" in a["response"]["body"]["usage"]
    errors = [json.loads(x) for x in client.files.content(b.error_file_id).text.splitlines()]
    assert [e["custom_id"] for e in errors] == ["at fault"]
    assert "top_p" in json.dumps(errors[0]), errors
    assert client.files.retrieve(b.output_file_id).purpose == "batch_output"
    assert client.batches.list(limit=1).data[0].id == b.id
    expect(openai.ConflictError, lambda: client.batches.cancel(b.id))


def a_failed_batch_names_the_faulty_line(client):
    f = upload(client, [line("same", "Sort: 1 2"), line("other", "Sort: 2"),
                        line("same", "Sort: 2 1")])
    b = wait(client, start(client, f.id), "failed")
    assert any(e.line == 3 and "same" in e.message for e in b.errors.data), b.errors
    expect(openai.BadRequestError, lambda: start(client, "file-nothing"), status_code=400)
    expect(openai.NotFoundError, lambda: client.batches.retrieve("batch_nothing"))
    stranger = client.with_options(api_key="not-the-key-at-all")
    expect(openai.AuthenticationError, lambda: stranger.batches.list())


def a_batch_is_cancelled(client):
    lines = [line(str(i), f"Sort: {i} 1", max_tokens=3000, ignore_eos=True) for i in range(40)]
    b = start(client, upload(client, lines).id)
    b = wait(client, b, "in_progress")
    assert client.batches.cancel(b.id).status in ("cancelling", "cancelled")
    b = wait(client, b, "cancelled")
    assert b.cancelling_at <= b.cancelled_at
    assert b.request_counts.completed < 40


def answers_of_two_batches_have_their_own_ids(client):
    file = upload(client, [line("a", "Sort: 3 1 2", max_tokens=1), line("b", "Sort: 1", n=0)])
    seen = []
    for _ in range(2):
        b = wait(client, start(client, file.id), "completed")
        for name in (b.output_file_id, b.error_file_id):
            found = json.loads(client.files.content(name).content)
            seen += [found["id"], found["response"]["request_id"]]
            if name == b.output_file_id:
                seen.append(found["response"]["body"]["id"])
    assert len(set(seen)) == len(seen) == 10, seen


def main():
    url, key = sys.argv[1:]
    client = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=600)
    for use in (files, a_batch_runs_to_its_end, a_failed_batch_names_the_faulty_line,
                a_batch_is_cancelled, answers_of_two_batches_have_their_own_ids):
        use(client)
        print(use.__name__)


if __name__ == "__main__":
    main()
