# pair_bars.awk - prints steps with kv home peer beside their bars. Input: JSON files of `cinch bench
# throughput --arms`, pair.json first; a file is known by its name. Variables:
#   base          --resident of the runs: batches with these few tokens give S0
#   layers        of the model
#   dense_layers  --select-dense-layers of pair.json
#   one           1: model and home are on one GPU
# Files: pair, serial (--packs 1, so that nothing runs beside anything), zip, plain (no home
# declared). S0 is the dense step of as many requests with few resident tokens. The bar of a step is
#   S0 + (bytes of the resident tokens) / (0.85 bandwidth)
#      + (bytes that the dense layers read) / (0.9 bandwidth)
#      + 0.24 ms for each 242 MB that arrive + launches of stages in line, 72 of them 0.25 ms
# With K rows the exchange reads all keys, so the bar is at least
#   (bytes of all keys) / (0.88 bandwidth) + 0.12 ms.
# On one GPU the bar is 1.10 times the dense step over as many tokens plus the exchange alone.
function value(line) {
    sub(/^[^:]*: */, "", line)
    return line + 0
}
function name_of(path) {
    sub(/^.*\//, "", path)
    sub(/\.json$/, "", path)
    return path
}
function figure(s, digits) { return s == "" ? "-" : sprintf("%." digits "f", s) }
function verdict(ok) { return ok ? "met" : "MISSED" }

FNR == 1 { file = name_of(FILENAME); files[file] = 1 }
/^  \{/ { n++; of[n] = file; arm[n] = "full" }
/^   "batch":/ { batch[n] = value($0) }
/^   "resident":/ { resident[n] = value($0) }
/^   "ms_per_step":/ { ms[n] = value($0) }
/^   "bytes_per_step":/ { bytes[n] = value($0) }
/^   "attended":/ { attended[n] = value($0) }
/^   "moved_share":/ { moved[n] = value($0) }
/^   "missed_share":/ { missed[n] = value($0) }
/^   "moved_bytes":/ { moved_bytes[n] = value($0) }
/^   "exchange_ms":/ { exchange[n] = value($0) }
/^   "stall_ms":/ { stall[n] = value($0) }
/^   "arm":/ { arm[n] = substr($0, index($0, ":") + 3); sub(/",?$/, "", arm[n]) }
/^ "weight_bytes":/ { weights = value($0) }
/^ "read_bytes_per_second":/ { bandwidth[file] = value($0) }

# The row of a file with this arm and batch, and with few or many resident tokens; 0: none.
function row(f, a, b, few,    i) {
    for (i = 1; i <= n; i++)
        if (of[i] == f && arm[i] == a && batch[i] == b && (resident[i] < 2 * base) == few) return i
    return 0
}

# The dense step of `batch` requests that hold `tokens` each: on the line through the file's short
# and long one.
function dense_ms(f, b, tokens,    s, l) {
    s = row(f, "full", b, 1)
    l = row(f, "full", b, 0)
    if (!s || !l) return ""
    return ms[s] + (ms[l] - ms[s]) * (tokens - resident[s]) / (resident[l] - resident[s])
}

function step_bar(i, f,    s, l, dense, reads, stages, bar, keys) {
    s = row(f, "full", batch[i], 1)
    l = row(f, "full", batch[i], 0)
    if (!s || !l || !bandwidth[f]) return ""
    dense = (bytes[l] - weights) * dense_layers / layers
    reads = ((bytes[i] - weights - dense) / 0.85 + dense / 0.9) / bandwidth[f] * 1e3
    stages = arm[i] ~ /^tls/ ? 2 * (layers - dense_layers) * 0.25 / 72 : 0
    bar = ms[s] + reads + 0.24 * moved_bytes[i] / 242e6 + stages
    keys = (bytes[l] - weights - dense) / 2 / 0.88 / bandwidth[f] * 1e3 + 0.12
    return arm[i] ~ /keys=rows/ && keys > bar ? keys : bar
}

function one_bar(i,    alone, s) {
    s = row("serial", arm[i], batch[i], 0)
    alone = dense_ms("pair", batch[i], attended[i])
    return !s || alone == "" ? "" : 1.1 * (alone + exchange[s])
}

function print_away(i,    bar, hidden) {
    bar = one ? one_bar(i) : step_bar(i, "pair")
    hidden = exchange[i] > 0 ? 1 - stall[i] / exchange[i] : ""
    printf "%d x %.0f  %-58s %8.3f ms  bar %6s  of it %5s  %s\n", batch[i], resident[i], arm[i],
           ms[i], figure(bar, 3), bar == "" ? "-" : figure(ms[i] / bar, 3),
           bar == "" ? "no bar" : verdict(ms[i] <= bar)
    printf "    %.0f tokens attended; replaced %.1f %%, missed %.1f %%; exchange %.3f ms, stall %.3f ms",
           attended[i], 100 * moved[i], 100 * missed[i], exchange[i], stall[i]
    if (!one && hidden != "" && arm[i] !~ /keys=rows/)
        printf ", hidden %.1f %% (95 %%: %s)", 100 * hidden, verdict(hidden >= 0.95)
    printf "; %.0f tokens/s\n", batch[i] / ms[i] * 1e3
}

END {
    for (i = 1; i <= n; i++)
        if (of[i] == "pair" && i in attended) print_away(i)
    for (i = 1; i <= n; i++)
        if (of[i] == "serial" && i in attended)
            printf "%d x %.0f  %-58s %8.3f ms one after the other, exchange %.3f ms\n", batch[i],
                   resident[i], arm[i], ms[i], exchange[i]
    for (i = 1; i <= n; i++) {
        if (of[i] != "zip" || !(i in attended)) continue
        for (k = 1; k <= n; k++)
            if (of[k] == "zip" && arm[k] ~ /^zip:[0-9]+$/ && batch[k] == batch[i] &&
                resident[k] >= 2 * base)
                printf "%s / %s, %d x %.0f: %.3f / %.3f ms = %.3f (%s: %s); replaced %.1f %%, stall %.3f ms\n",
                       arm[i], arm[k], batch[i], resident[i], ms[i], ms[k], ms[i] / ms[k],
                       one ? "on two GPUs 1.06" : "1.06", one ? "-" : verdict(ms[i] <= 1.06 * ms[k]),
                       100 * moved[i], stall[i]
    }
    for (i = 1; i <= n; i++) {
        if (of[i] != "plain" || resident[i] < 2 * base) continue
        k = row("pair", "full", batch[i], 0)
        if (k)
            printf "full, with a home declared / without, %d x %.0f: %.3f / %.3f ms = %.4f (1.01: %s)\n",
                   batch[i], resident[i], ms[k], ms[i], ms[k] / ms[i], verdict(ms[k] <= 1.01 * ms[i])
    }
    for (i = 1; i <= n; i++)
        if (of[i] == "most" || of[i] ~ /^singles/)
            printf "%s: %d x %.0f  %s: %.3f ms, %.0f tokens/s of %s\n", of[i], batch[i], resident[i],
                   arm[i], ms[i], batch[i] / ms[i] * 1e3, of[i] == "most" ? "the pair" : "one GPU"
}
