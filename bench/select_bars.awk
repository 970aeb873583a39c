# select_bars.awk - prints decode steps with selectors beside their bars. Input: the JSON file of one
# `cinch bench throughput --arms` run. Variables:
#   base          --resident of the run: batches with these few tokens give S0
#   layers        of the model
#   dense_layers  --select-dense-layers
# The bar of a step is
#   S0 + (bytes that selection and its attention read) / (0.85 bandwidth)
#      + (bytes that the dense layers read) / (0.9 bandwidth) + launches
# S0 is the dense step of as many requests with few resident tokens. A stage takes two launches in
# each layer that selects, of spec none; 72 launches count 0.25 ms. "x dense" is the dense step / the step.
function value(line) {
    sub(/^[^:]*: */, "", line)
    return line + 0
}
function number_of(s) { return s == "" ? "-" : sprintf("%.3f", s) }

/^  \{/ { n++ }
/^   "batch":/ { batch[n] = value($0) }
/^   "resident":/ { resident[n] = value($0) }
/^   "ms_per_step":/ { ms[n] = value($0) }
/^   "bytes_per_step":/ { bytes[n] = value($0) }
/^   "arm":/ { arm[n] = substr($0, index($0, ":") + 3); sub(/",?$/, "", arm[n]) }
/^   "floor_share":/ { share[n] = value($0) }
/^   "idle_share":/ { idle[n] = value($0) }
/^ "weight_bytes":/ { weights = value($0) }
/^ "read_bytes_per_second":/ { bandwidth = value($0) }

function bar_of(i, full, s0,    dense, stages, reads) {
    if (bandwidth == 0 || s0 == "" || arm[i] == "full") return ""
    dense = (bytes[full] - weights) * dense_layers / layers
    stages = arm[i] ~ /^tls/ ? 2 : arm[i] ~ /^spec/ ? 0 : 1
    reads = ((bytes[i] - weights - dense) / 0.85 + dense / 0.9) / bandwidth * 1e3
    return s0 + reads + 2 * stages * (layers - dense_layers) * 0.25 / 72
}

END {
    for (i = 1; i <= n; i++)
        if (resident[i] < 2 * base && arm[i] == "full") small[batch[i]] = ms[i]
    for (i = 1; i <= n; i++) {
        if (resident[i] < 2 * base) continue
        if (arm[i] == "full") {
            full = i
            printf "%d x %.0f, %d dense layers, S0 %s ms\n", batch[i], resident[i], dense_layers,
                   number_of(small[batch[i]])
        }
        bar = bar_of(i, full, small[batch[i]])
        printf "  %-28s %8.3f ms  %5.2f x dense  bar %6s ms  of it %5s  floor %5s  idle %6s  %6.0f tokens/s\n",
               arm[i], ms[i], ms[full] / ms[i], number_of(bar), bar == "" ? "-" : number_of(ms[i] / bar),
               number_of(share[i]), number_of(idle[i]), batch[i] / ms[i] * 1e3
    }
}
