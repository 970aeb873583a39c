# host_bars.awk - prints the rows with kv home host of a run beside full KV: the tokens/s of the
# largest batch of each, for each forced churn. Input: a JSON file of `cinch bench throughput
# --arms`, known by its name: the bar is 5 times full KV with contexts of 96k (long, dense), 3 times
# in `most`. A churn of 1 % may miss nothing.
function value(line) {
    sub(/^[^:]*: */, "", line)
    return line + 0
}
FNR == 1 {
    file = FILENAME
    sub(/^.*\//, "", file)
    sub(/\.json$/, "", file)
}
/^  \{/ { n++; arm[n] = "full" }
/^   "batch":/ { batch[n] = value($0) }
/^   "churn":/ { churn[n] = value($0) }
/^   "resident":/ { resident[n] = value($0) }
/^   "ms_per_step":/ { ms[n] = value($0) }
/^   "moved_entries":/ { moved[n] = value($0) }
/^   "missed_entries":/ { missed[n] = value($0) }
/^   "moved_bytes":/ { bytes[n] = value($0) }
/^   "exchange_ms":/ { exchange[n] = value($0) }
/^   "stall_ms":/ { stall[n] = value($0) }
/^   "arm":/ { arm[n] = substr($0, index($0, ":") + 3); sub(/",?$/, "", arm[n]) }
function rate(i) { return batch[i] / ms[i] * 1e3 }
function verdict(ok) { return ok ? "met" : "MISSED" }
function print_exchange(i) {
    printf "; moved %.1f and missed %.1f tiles of a request", moved[i], missed[i]
    if (churn[i] > 0 && churn[i] < 0.015) printf " (none: %s)", verdict(missed[i] == 0)
    printf ", %.1f GB/s, exchange %.3f ms, stall %.3f ms", bytes[i] / exchange[i] / 1e6,
           exchange[i], stall[i]
}
END {
    for (i = 1; i <= n; i++)
        if (!(i in moved) && arm[i] == "full" && (!full || batch[i] > batch[full])) full = i
    bar = 5
    if (file == "most") bar = 3
    if (file == "device") bar = 0
    if (bar && !full) printf "%s: full KV fits no batch, so nothing is beside the home: MISSED\n", file
    for (i = 1; i <= n; i++) {
        printf "%s: %d x %.0f  %s", file, batch[i], resident[i], arm[i]
        if (churn[i] > 0) printf ", churn %g %%", 100 * churn[i]
        printf ": %.3f ms, %.1f tokens/s", ms[i], rate(i)
        if (i in moved && exchange[i] > 0) print_exchange(i)
        printf "\n"
        if (!bar || !full || !(i in moved)) continue
        c = churn[i] + 0
        if (!(c in best) || rate(i) > rate(best[c])) best[c] = i
    }
    for (i = 1; i <= n; i++) {
        if (best[churn[i] + 0] != i) continue
        printf "%s, churn %g %%: home host, batch %d / full KV, batch %d: %.1f / %.1f tokens/s = " \
               "%.2f (%d: %s)\n", file, 100 * churn[i], batch[i], batch[full], rate(i), rate(full),
               rate(i) / rate(full), bar, verdict(rate(i) >= bar * rate(full))
    }
}
