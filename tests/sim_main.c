/* sim_main.c - runs the simulation: sim SEED STEPS [--epoch N] [--full-only]. When a check fails,
 * exits with 1 and prints the seed and the step. The same arguments fail at the same step. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/base.h"
#include "tests/sim/sim.h"

static bool parse(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && text[0] != '-';
}

static bool parse_args(int argc, char **argv, sim_opts *o)
{
    if (argc < 3 || !parse(argv[1], &o->seed) || !parse(argv[2], &o->steps)) return false;
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--full-only") == 0)
            o->full_only = true;
        else if (strcmp(argv[i], "--epoch") != 0 || i + 1 == argc ||
                 !parse(argv[++i], &o->epoch_steps))
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    sim_opts o = {0};
    if (!parse_args(argc, argv, &o)) {
        fprintf(stderr, "usage: %s SEED STEPS [--epoch N] [--full-only]\n", argv[0]);
        return 2;
    }
    sim_result r;
    double start = cn_now_s();
    bool good = sim_run(&o, &r);
    double seconds = cn_now_s() - start;
    printf("seed %llu: %llu steps in %llu epochs, %.0f steps/s\n", (unsigned long long)o.seed,
           (unsigned long long)r.steps, (unsigned long long)r.epochs, (double)r.steps / seconds);
    printf("%llu sequences (%llu forked, %llu cancelled, %llu aged), %llu tokens, "
           "%llu from the prefix cache, %llu events, %llu preemptions, "
           "%llu moves to swap space\n",
           (unsigned long long)r.requests, (unsigned long long)r.forks,
           (unsigned long long)r.cancels, (unsigned long long)r.aged, (unsigned long long)r.tokens,
           (unsigned long long)r.prefix_hits, (unsigned long long)r.events,
           (unsigned long long)r.preemptions, (unsigned long long)r.swap_outs);
    printf("%llu blocks of prompts replaced to stay in the prefix cache; %llu events whose sources "
           "found sharers\n",
           (unsigned long long)r.sources, (unsigned long long)r.new_sharers);
    printf("%llu sequences with a selector; rings: %llu read, %llu forked, %llu filled again\n",
           (unsigned long long)r.selecting, (unsigned long long)r.ring_reads,
           (unsigned long long)r.ring_forks, (unsigned long long)r.ring_readmissions);
    printf("%llu and %llu away events counted more queries than the window, %llu sequences all\n",
           (unsigned long long)r.observed[0], (unsigned long long)r.observed[1],
           (unsigned long long)r.count_all);
    printf("%llu blocks of prompts went home before an event, in %llu steps as many as may; %llu "
           "puts when a sequence left\n",
           (unsigned long long)r.early_puts, (unsigned long long)r.full_puts,
           (unsigned long long)r.puts_left);
    printf("%llu away sequences: %llu blocks put, %llu areas filled, %llu exchanges (%llu ahead) "
           "of %llu entries, %llu returns from swap space for a home\n",
           (unsigned long long)r.away, (unsigned long long)r.puts, (unsigned long long)r.fills,
           (unsigned long long)r.exchanges, (unsigned long long)r.exchanges_ahead,
           (unsigned long long)r.moves,
           (unsigned long long)r.home_returns);
    printf("home auto: %llu admissions to the device, %llu to peer, %llu to host; %llu moves\n",
           (unsigned long long)r.auto_admissions[0], (unsigned long long)r.auto_admissions[1],
           (unsigned long long)r.auto_admissions[2], (unsigned long long)r.auto_moves);
    printf("%llu admissions past a sequence of another owner\n",
           (unsigned long long)r.shares_checked);
    printf("longest wait as the foremost waiting: %llu steps; longest life as the foremost: "
           "%llu\n",
           (unsigned long long)r.longest_head_wait, (unsigned long long)r.longest_foremost);
    if (!good) fprintf(stderr, "FAILED: %s\n", r.error);
    return good ? 0 : 1;
}
