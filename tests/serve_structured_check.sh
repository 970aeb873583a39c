#!/bin/sh
# Structured output: the openai package with pydantic models against a server, then answers under
# random schemas at temperature 2, checked with the jsonschema package. BUILD is the build directory,
# STRUCTURED_N the number of schemas, SEED draws them.
set -eu
dir=$(mktemp -d)
. tests/lib/serve.sh
trap clean_up EXIT

need_python structured openai==3.52.0 jsonschema==4.26.0
serve --kv-cache-memory-bytes 128M
"$python" tests/clients/openai_structured.py "$url"
stop
"$python" tests/clients/structured_output.py "${BUILD:-build}/cinch" examples/tiny-reasoner \
    "${STRUCTURED_N:-300}" "${SEED:-1}"
