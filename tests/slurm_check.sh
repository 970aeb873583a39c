#!/bin/bash
# slurm_check.sh - the recipe in examples/deploy/slurm with Debian's Slurm: an array of eight tasks,
# of which one is killed and one terminated; both are queued again. A shard that is lost is
# submitted again as a subset. The merged answers are those of one run. BUILD is the build directory.
# Prints SKIPPED where not root, or without Slurm; with REQUIRE_REFERENCES=1 that is a failure.
set -eu
cinch=$(realpath "${BUILD:-build}/cinch")
recipe=$(realpath examples/deploy/slurm)
for program in slurmctld slurmd sbatch munged runuser; do
    PATH=$PATH:/usr/sbin command -v $program >/dev/null && [ "$(id -u)" = 0 ] && continue
    echo "SKIPPED slurm_check: needs root, slurm-wlm and munge (no $program)"
    [ "${REQUIRE_REFERENCES:-0}" = 0 ]
    exit
done
PATH=$PATH:/usr/sbin
dir=$(mktemp -d)
daemons=""
end() {
    scancel --quiet -u root 2>/dev/null || true
    # shellcheck disable=SC2086
    kill $daemons 2>/dev/null || true
    for _ in $(seq 50); do
        # shellcheck disable=SC2086
        kill -0 $daemons 2>/dev/null || break
        sleep 0.1
    done
    # shellcheck disable=SC2086
    kill -KILL $daemons 2>/dev/null || true
    # shellcheck disable=SC2086
    wait $daemons 2>/dev/null || true
    rm -rf "$dir"
}
trap end EXIT
fail() {
    echo "slurm: $*"
    tail -n 30 "$dir"/work/*.log "$dir"/*.log || true
    exit 1
}

# ---- a cluster of this machine, without systemd and with its own keys and ports ----

read -r port1 port2 <<<"$("${PYTHON:-python3}" -c 'import socket
s = [socket.socket() for _ in range(2)]
for x in s: x.bind(("127.0.0.1", 0))
print(*(x.getsockname()[1] for x in s))')"
mkdir "$dir/munge" "$dir/state" "$dir/spool" "$dir/work"
chmod 755 "$dir"
head -c 64 /dev/urandom >"$dir/munge/key"
chmod 600 "$dir/munge/key"
chown -R munge:munge "$dir/munge"
cat >"$dir/slurm.conf" <<C
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CredType=cred/munge
SlurmctldPort=$port1
SlurmdPort=$port2
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
KillWait=5
SchedulerParameters=sched_interval=2,sched_min_interval=0
SlurmdParameters=config_overrides
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
NodeName=localhost NodeAddr=127.0.0.1 CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=4000
PartitionName=test Nodes=localhost Default=YES MaxTime=30 State=UP
C
export SLURM_CONF=$dir/slurm.conf
# exec: a signal to the child reaches munged.
(exec runuser -u munge -- munged --foreground --key-file="$dir/munge/key" \
    --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" --seed-file="$dir/munge/seed" \
    --log-file="$dir/munge/log") >"$dir/munged.log" 2>&1 &
daemons="$daemons $!"

# until_true SECONDS COMMAND...: waits until it succeeds.
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || fail "waits for $*"
        sleep 0.1
    done
}
until_true 10 test -S "$dir/munge/socket"
slurmctld -D -c >"$dir/slurmctld.log" 2>&1 &
daemons="$daemons $!"
slurmd -D -N localhost >"$dir/slurmd.log" 2>&1 &
daemons="$daemons $!"
is_idle() { sinfo -h -o %T | grep -q idle; }
until_true 30 is_idle

# ---- the recipe ----

cd "$dir/work"
for i in $(seq 1 64); do echo "{\"prompt\": \"Sort: $i 3 $((i * 7 % 10))\"}"; done >in.jsonl
export MODEL=$recipe/../../tiny-reasoner INPUT=in.jsonl OUT=out MERGED=merged.jsonl CINCH=$cinch
export CINCH_SHARD_COUNT=8
options="--prompt-field prompt --device cpu --threads 1 --kv-cache-memory-bytes 32M
    --max-model-len 2048 --temperature 0 --max-tokens 96 --ignore-eos --max-num-seqs 1
    --progress none"
# This cluster has no GPUs, and eight small tasks at once.
sed '/gpus-per-task/d; s/--cpus-per-task=8/--cpus-per-task=1/' "$recipe/shards.sbatch" >shards.sbatch
# shellcheck disable=SC2086
"$cinch" run-batch --model "$MODEL" -i in.jsonl -o one.jsonl $options >one.log 2>&1 ||
    fail "one run"

# shellcheck disable=SC2086
job=$(sbatch --parsable --array=0-7 shards.sbatch $options)
lines() { [ -s "out/part-0000$1-of-00008.jsonl" ]; }
# run_of TASK: the process of the task's cinch.
run_of() {
    local p
    for p in /proc/[0-9]*; do
        [ "$(readlink "$p/exe" 2>/dev/null)" = "$cinch" ] &&
            tr '\0' '\n' <"$p/environ" 2>/dev/null | grep -qx "SLURM_ARRAY_TASK_ID=$1" &&
            tr '\0' '\n' <"$p/environ" 2>/dev/null | grep -qx "SLURM_CONF=$SLURM_CONF" &&
            echo "${p#/proc/}"
    done
}
until_true 60 lines 3
kill -KILL "$(run_of 3)"
until_true 60 lines 5
kill -TERM "$(run_of 5)"
# Slurm lets a job that was queued again wait for two minutes. Some seconds are needed: slurmd takes
# no credential of the second in which it ended the job ("Job credential revoked").
for task in 3 5; do
    is_back() { scontrol show job "${job}_$task" | grep -q 'Restarts=1'; }
    until_true 60 is_back
    is_pending() { scontrol show job "${job}_$task" | grep -q 'JobState=PENDING'; }
    until_true 60 is_pending
    until_true 20 scontrol update jobid="${job}_$task" StartTime=now+3
done
# is_over JOB: every task has ended. A question that slurmctld does not answer says nothing.
is_over() {
    local states
    states=$(scontrol show job "$1" | grep -o 'JobState=[A-Z_]*') || return 1
    ! grep -qvE '=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)$' <<<"$states"
}
until_true 300 is_over "$job"
grep -q "removed an incomplete\|done before" cinch-"${job}"_3.log || fail "task 3 did not go on"
grep -q "interrupted; --resume continues" cinch-"${job}"_5.log || fail "task 5 did not drain"
grep -q "done before" cinch-"${job}"_5.log || fail "task 5 did not go on"

# merge CODE TEXT: submits the merge and expects this of it.
merge() {
    local id code=0
    id=$(sbatch --parsable --dependency=afterany:"$job" "$recipe/merge.sbatch")
    until_true 120 is_over "$id"
    grep -qF "$2" cinch-merge-"$id".log || fail "merge: no '$2'"
    scontrol show job "$id" | grep -q "ExitCode=$1:0" || code=1
    [ $code = 0 ] || fail "merge: exit code is not $1"
}
rm out/part-00002-of-00008.jsonl* out/part-00006-of-00008.jsonl*
merge 3 "missing shards: 2,6"
# shellcheck disable=SC2086
job=$(sbatch --parsable --array=2,6 shards.sbatch $options)
until_true 300 is_over "$job"
grep -q "shard 6 of 8 (SLURM_ARRAY_TASK_ID)" cinch-"${job}"_6.log || fail "a subset has other shards"
merge 0 "64 lines: 64 answered, 0 errors"

answers() {
    sed 's/.*"custom_id":\("[^"]*"\).*"content":\("\([^"\\]\|\\.\)*"\).*/\1 \2/' "$1" | sort
}
answers one.jsonl >one
answers merged.jsonl | cmp - one || fail "the answers are not those of one run"

echo "slurm: ok"
