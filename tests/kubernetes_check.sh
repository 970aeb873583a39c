#!/bin/sh
# kubernetes_check.sh - the files in examples/deploy/kubernetes fit the schemas of Kubernetes
# (kubernetes-validate --strict, which does not know the values of strings), their policies have
# values that Kubernetes knows, and cinch takes their arguments. BUILD is the build directory.
# Prints SKIPPED without the packages; with REQUIRE_REFERENCES=1 that is a failure.
set -eu
dir=$(mktemp -d)
. tests/lib/serve.sh
trap clean_up EXIT
need_python kubernetes kubernetes-validate==1.37.0
for file in examples/deploy/kubernetes/*.yaml; do
    "${python%python}kubernetes-validate" --strict "$file" >"$dir/log" 2>&1 ||
        { cat "$dir/log"; exit 1; }
done
# A fault must be seen.
sed 's/backoffLimitPerIndex/backoffLimitPerindex/' examples/deploy/kubernetes/batch.yaml \
    >"$dir/bad.yaml"
! "${python%python}kubernetes-validate" --strict "$dir/bad.yaml" >"$dir/log" 2>&1 ||
    { echo "kubernetes-validate sees no fault"; exit 1; }

"$python" - "$cinch" examples/deploy/kubernetes/*.yaml <<'P'
import subprocess, sys
import yaml
VALUES = {"completionMode": {"Indexed", "NonIndexed"}, "restartPolicy": {"Never", "OnFailure", "Always"},
          "podReplacementPolicy": {"Failed", "TerminatingOrFailed"}, "operator": {"In", "NotIn"},
          "action": {"Ignore", "FailIndex", "FailJob", "Count"},
          "podManagementPolicy": {"Parallel", "OrderedReady"}}
MODES = {"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"}


def check(value):
    if isinstance(value, list):
        for v in value:
            check(v)
    if not isinstance(value, dict):
        return
    for key, v in value.items():
        assert key not in VALUES or v in VALUES[key], f"{key}: {v}"
        assert key != "accessModes" or set(v) <= MODES, v
        check(v)
    if "containers" in value:
        mounted = {m["name"] for c in value["containers"] for m in c["volumeMounts"]}
        claims = {v["name"] for v in value["volumes"]} | {"spool"}
        assert mounted <= claims, mounted
    for c in value.get("containers", []):
        args = [sys.argv[1]] + c["args"] + ["--check-options"]
        assert c["command"] == ["cinch"] and subprocess.run(args).returncode == 0, args
        env = {e["name"]: e["value"] for e in c.get("env", [])}
        COUNTS.append(env.get("CINCH_SHARD_COUNT"))


for path in sys.argv[2:]:
    for document in yaml.safe_load_all(open(path)):
        COUNTS = []
        check(document)
        n = document["spec"].get("completions")
        assert n is None or COUNTS == [str(n)], f"{path}: CINCH_SHARD_COUNT is not completions"
P
echo "kubernetes: ok"
