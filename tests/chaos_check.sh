#!/bin/sh
# A few rounds of tests/serve_chaos.py: `cinch serve` is killed while it runs batches, and every
# line of every output is read. CHAOS_ROUNDS=50 for an evening's worth, CHAOS_SEED for others.
set -eu
python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
    echo "SKIPPED chaos_check: no $python"
    [ "${REQUIRE_REFERENCES:-0}" = 0 ]
    exit
fi
"$python" tests/serve_chaos.py --cinch "${BUILD:-build}/cinch" --rounds "${CHAOS_ROUNDS:-4}" \
    --seed "${CHAOS_SEED:-1}"
