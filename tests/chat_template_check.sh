#!/bin/sh
# Chats must render as in the package jinja2, in the environment of transformers: random
# conversations over the templates of tests/golden/chat_template. The package comes from PyPI on the
# first run and stays in BUILD/reference. Prints SKIPPED without it; with REQUIRE_REFERENCES=1 that is
# a failure. COUNT is the number of conversations for each template, SEED chooses them.
set -eu
build=${BUILD:-build}
reference=$build/reference
python=${PYTHON:-python3}

skip() {
    echo "SKIPPED chat_template_check: $1"
    [ "${REQUIRE_REFERENCES:-0}" = 0 ]
    exit
}

mkdir -p "$reference"
if ! "$python" -c 'import jinja2' 2>/dev/null; then
    if [ ! -x "$reference/jinja/bin/python" ]; then
        "$python" -m venv "$reference/jinja" || skip "no python3 with venv"
    fi
    python=$reference/jinja/bin/python
    "$python" -c 'import jinja2' 2>/dev/null ||
        "$python" -m pip install -q jinja2==3.1.6 ||
        skip "pip cannot install the package jinja2"
fi
"$python" tests/golden/chat_template/compare.py "$build/cinch" --count "${COUNT:-40}" \
    --seed "${SEED:-1}"
