"""Structured output through instructor, with sets, URLs and optional members.

    structured_frameworks.py URL

The server must serve the bundled checkpoint under the name "tiny", with the tool parser hermes.
"""
import sys
from typing import Annotated, Literal, Optional

import instructor
import openai
from pydantic import AnyUrl, BaseModel, Field


class Page(BaseModel):
    url: Annotated[AnyUrl, Field(max_length=40)]
    tags: set[Literal["a", "b", "c"]]
    score: Annotated[float, Field(ge=0.5, le=0.95)]
    note: Optional[Annotated[str, Field(max_length=5)]] = None


def main():
    client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=60)
    ask = instructor.from_openai(client, mode=instructor.Mode.TOOLS).chat.completions.create
    for seed in range(4):
        page = ask(model="tiny", response_model=Page, temperature=2, seed=seed, max_tokens=400,
                   max_retries=0, messages=[{"role": "user", "content": "Describe a page."}])
        assert isinstance(page, Page), page
    print("instructor: ok")


if __name__ == "__main__":
    main()
