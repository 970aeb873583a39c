#!/bin/sh
# Runs a few rounds of tests/serve_chaos.py, which kills `cinch serve` while it runs batches and
# checks every line of every output. CHAOS_ROUNDS (4) sets the rounds, CHAOS_SEED (1) the seed.
set -eu
python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
    echo "SKIPPED chaos_check: no $python"
    [ "${REQUIRE_REFERENCES:-0}" = 0 ]
    exit
fi
"$python" tests/serve_chaos.py --cinch "${BUILD:-build}/cinch" --rounds "${CHAOS_ROUNDS:-4}" \
    --seed "${CHAOS_SEED:-1}"
