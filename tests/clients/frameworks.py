"""Uses chats and completions through litellm and langchain-openai, whole, streamed and in batches.

    frameworks.py URL KEY

The server must serve the bundled checkpoint under the name "tiny" with the API key KEY.
"""
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # downloads nothing
import litellm
from langchain_openai import ChatOpenAI, OpenAI

url, key = sys.argv[1] + "/v1", sys.argv[2]
TEXTS = ["Compute 12 * 34 by hand.", "Sort: 3 1 2"]


def messages(text):
    return [{"role": "user", "content": text}]


def litellm_answers():
    def ask(call=litellm.completion, **more):
        return call(model="openai/tiny", api_base=url, api_key=key, temperature=0, **more)

    whole = ask(messages=messages(TEXTS[0]))
    assert whole.choices[0].message.content.endswith("408"), whole
    assert whole.usage.completion_tokens > 5
    text = "".join(c.choices[0].delta.content or ""
                   for c in ask(messages=messages(TEXTS[0]), stream=True))
    assert text == whole.choices[0].message.content
    many = litellm.batch_completion(model="openai/tiny", api_base=url, api_key=key, temperature=0,
                                    messages=[messages(t) for t in TEXTS])
    assert many[0].choices[0].message.content == whole.choices[0].message.content
    r = ask(litellm.text_completion, prompt=TEXTS, max_tokens=4)
    assert len(r.choices) == 2, r
    try:
        ask(messages=messages("x"), top_p=3)
        raise AssertionError("not refused")
    except litellm.BadRequestError as e:
        assert "top_p" in str(e), e


def langchain_answers():
    chat = ChatOpenAI(model="tiny", base_url=url, api_key=key, temperature=0, max_retries=0)
    whole = chat.invoke(TEXTS[0])
    assert whole.content.endswith("408"), whole
    assert "".join(c.content for c in chat.stream(TEXTS[0])) == whole.content
    assert chat.batch(TEXTS)[0].content == whole.content
    llm = OpenAI(model="tiny", base_url=url, api_key=key, temperature=0, max_retries=0,
                 max_tokens=8)
    one = [llm.invoke(t) for t in TEXTS]
    assert [g[0].text for g in llm.generate(TEXTS).generations] == one
    assert "".join(llm.stream(TEXTS[1])) == one[1]


for use in (litellm_answers, langchain_answers):
    use()
    print(use.__name__)
