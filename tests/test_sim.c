/* test_sim.c - short runs of the simulation, and planted bugs that it must catch: once with the
 * invariants, once with only the fake device and the bounds on waiting. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/sim/sim.h"

static void run_well(sim_opts o, sim_result *r)
{
    if (!sim_run(&o, r)) fail_msg("%s", r->error);
    assert_true(r->steps >= o.steps);
}

static void short_runs_hold_every_invariant(void **state)
{
    (void)state;
    sim_result r;
    uint64_t events = 0, preemptions = 0, forks = 0, hits = 0, cancels = 0, turns = 0;
    uint64_t shares = 0;
    uint64_t outs = 0, ins = 0, ring_reads = 0, ring_forks = 0, ring_readmissions = 0;
    uint64_t away = 0, puts = 0, fills = 0, exchanges = 0, moves = 0, chosen[3] = {0, 0, 0};
    uint64_t early_puts = 0, full_puts = 0, puts_left = 0;
    uint64_t auto_moves = 0, sources = 0, new_sharers = 0, observed[2] = {0, 0}, count_all = 0;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        run_well((sim_opts){.seed = seed, .steps = 10000, .epoch_steps = 500}, &r);
        events += r.events;
        preemptions += r.preemptions;
        forks += r.forks;
        hits += r.prefix_hits;
        cancels += r.cancels;
        turns += r.batch_turns;
        shares += r.shares_checked;
        outs += r.swap_outs;
        ins += r.swap_ins;
        ring_reads += r.ring_reads;
        ring_forks += r.ring_forks;
        ring_readmissions += r.ring_readmissions;
        away += r.away;
        puts += r.puts;
        early_puts += r.early_puts;
        full_puts += r.full_puts;
        puts_left += r.puts_left;
        fills += r.fills;
        exchanges += r.exchanges;
        moves += r.moves;
        for (int h = 0; h < 3; h++) chosen[h] += r.auto_admissions[h];
        auto_moves += r.auto_moves;
        for (int i = 0; i < 2; i++) observed[i] += r.observed[i];
        count_all += r.count_all;
        sources += r.sources;
        new_sharers += r.new_sharers;
    }
    /* A run without any of these would have tested nothing. */
    assert_true(events > 1000 && preemptions > 100 && forks > 100);
    assert_true(hits > 1000 && cancels > 100 && turns > 100);
    assert_true(ring_reads > 5000 && ring_forks > 30 && ring_readmissions > 50);
    assert_true(shares > 500);
    assert_true(sources > 1000 && new_sharers > 50);
    assert_true(ins > 30 && outs > ins); /* the others ended in the swap space */
    assert_true(away > 500 && puts > 5000 && fills > 300 && exchanges > 20000 && moves > 20000);
    assert_true(early_puts > 1000 && full_puts > 100 && puts_left > 20);
    assert_true(observed[0] > 500 && observed[1] > 300 && count_all > 100);
    assert_true(chosen[0] > 100 && chosen[1] > 100 && chosen[2] > 5 && auto_moves > 0);
}

static void full_kv_never_compresses(void **state)
{
    (void)state;
    sim_result r;
    run_well((sim_opts){.seed = 5, .steps = 20000, .epoch_steps = 500, .full_only = true}, &r);
    assert_int_equal(r.events, 0);
    assert_true(r.preemptions > 100);
}

static void a_seed_repeats_a_run(void **state)
{
    (void)state;
    sim_result a, b;
    run_well((sim_opts){.seed = 7, .steps = 5000, .epoch_steps = 500}, &a);
    run_well((sim_opts){.seed = 7, .steps = 5000, .epoch_steps = 500}, &b);
    assert_int_equal(a.tokens, b.tokens);
    assert_int_equal(a.events, b.events);
    assert_int_equal(a.preemptions, b.preemptions);
    run_well((sim_opts){.seed = 8, .steps = 5000, .epoch_steps = 500}, &b);
    assert_int_not_equal(a.tokens, b.tokens);
}

/* Runs in a child process, because a broken reference count may fail an assertion before any check.
 * The result is that of sim_run, or that the child died of an assertion. */
static void run_apart(const sim_opts *o, sim_result *r)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(2);
        signal(SIGABRT, SIG_DFL);
        sim_run(o, r);
        _exit(write(ends[1], r, sizeof *r) == (ssize_t)sizeof *r ? 0 : 2);
    }
    close(ends[1]);
    int status = 0;
    ssize_t n = read(ends[0], r, sizeof *r);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (n == (ssize_t)sizeof *r) return;
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    *r = (sim_result){.fault_struck = true, .error = "died of an assertion"};
}

enum { N_SEEDS = 24 };

/* Plants the fault with several seeds. Returns the number of seeds that caught it. At least one
 * error must contain `how`. */
static int count_caught(sim_fault fault, bool without_invariants, const char *how)
{
    int n_caught = 0;
    bool seen = false;
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        sim_result r;
        sim_opts o = {.seed = seed,
                      .steps = 1000000, /* a run ends when its fault is caught */
                      .epoch_steps = 500,
                      .fault = fault,
                      .without_invariants = without_invariants};
        run_apart(&o, &r);
        assert_true(r.fault_struck);
        n_caught += r.error[0] != '\0';
        seen = seen || strstr(r.error, how);
    }
    if (!seen) fail_msg("never caught as: %s", how);
    return n_caught;
}

static void is_caught(sim_fault fault, bool without_invariants, const char *how)
{
    assert_int_equal(count_caught(fault, without_invariants, how), N_SEEDS);
}

static void a_dropped_reference_is_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_DROPPED_REF, false, "reference counts differ from the entries");
    is_caught(SIM_FAULT_DROPPED_REF, true, "wrong tag");
}

static void a_leaked_slot_is_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_LEAKED_SLOT, false, "query slots leaked");
    is_caught(SIM_FAULT_LEAKED_SLOT, true, "slots are held");
}

static void a_commit_without_its_event_is_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_EARLY_COMMIT, false, "wrong tag");
    is_caught(SIM_FAULT_EARLY_COMMIT, true, "wrong tag");
}

static void a_stale_prefix_is_caught(void **state)
{
    (void)state;
    /* The next event may overwrite the block and its entry before any check. The tags are right
     * until a request hits the entry. */
    assert_true(count_caught(SIM_FAULT_STALE_PREFIX, false, "in the prefix cache") > N_SEEDS / 2);
    assert_true(count_caught(SIM_FAULT_STALE_PREFIX, true, "wrong tag") >= 1);
}

static void a_written_source_is_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_WRITTEN_SOURCE, false, "a block that an event writes or pins");
    is_caught(SIM_FAULT_WRITTEN_SOURCE, true, "wrong tag");
}

static void leaked_swap_space_is_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_LEAKED_SWAP, false, "swap space leaked");
    is_caught(SIM_FAULT_LEAKED_SWAP, true, "of swap are held");
}

static void swap_space_given_back_early_is_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_EARLY_SWAP, false, "is free or is shared");
    is_caught(SIM_FAULT_EARLY_SWAP, true, "died of an assertion");
}

static void content_from_the_wrong_swap_space_is_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_WRONG_SWAP, false, "wrong tag");
    is_caught(SIM_FAULT_WRONG_SWAP, true, "wrong tag");
}

static void a_late_put_is_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_LATE_PUT, false, "an exchange read a wrong tag");
    is_caught(SIM_FAULT_LATE_PUT, true, "an exchange read a wrong tag");
}

static void a_digest_before_its_put_is_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_EARLY_DIGEST, false, "an exchange read a wrong digest");
    is_caught(SIM_FAULT_EARLY_DIGEST, true, "an exchange read a wrong digest");
}

static void a_home_block_given_back_early_is_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_EARLY_HOME, false, "references to home blocks differ");
    is_caught(SIM_FAULT_EARLY_HOME, true, "died of an assertion");
}

static void a_pack_that_does_not_wait_for_its_exchange_is_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_NO_WAIT, false, "expected");
    is_caught(SIM_FAULT_NO_WAIT, true, "expected");
}

static void the_wrong_home_block_is_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_WRONG_HOME, false, "wrong tag");
    is_caught(SIM_FAULT_WRONG_HOME, true, "wrong tag");
}

static void device_blocks_without_home_blocks_are_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_HALF_TAKEN, false, "device blocks without its home blocks");
    is_caught(SIM_FAULT_HALF_TAKEN, true, "has 0 home blocks");
}

static void a_put_of_a_block_that_is_not_full_is_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_PARTIAL_PUT, false, "a block was put before it was full");
    is_caught(SIM_FAULT_PARTIAL_PUT, true, "a put read a wrong tag");
}

static void a_put_that_does_not_count_is_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_UNCOUNTED_PUT, false, "is put again");
    is_caught(SIM_FAULT_UNCOUNTED_PUT, true, "is put again");
}

static void a_step_that_puts_too_much_is_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_MANY_PUTS, false, "but at most");
    is_caught(SIM_FAULT_MANY_PUTS, true, "but at most");
}

static void a_first_event_that_does_not_wait_for_puts_is_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_NO_PUT_WAIT, false, "an exchange read a wrong tag");
    is_caught(SIM_FAULT_NO_PUT_WAIT, true, "an exchange read a wrong tag");
}

static void a_block_written_before_its_put_is_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_UNORDERED_PUT, false, "a put read a wrong tag");
    is_caught(SIM_FAULT_UNORDERED_PUT, true, "a put read a wrong tag");
}

static void a_home_block_given_back_during_a_prompt_is_caught(void **state)
{
    (void)state;
    is_caught(SIM_FAULT_EARLY_PROMPT, false, "references to home blocks differ");
    is_caught(SIM_FAULT_EARLY_PROMPT, true, "died of an assertion");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_runs_hold_every_invariant),
        cmocka_unit_test(full_kv_never_compresses),
        cmocka_unit_test(a_seed_repeats_a_run),
        cmocka_unit_test(a_dropped_reference_is_caught),
        cmocka_unit_test(a_leaked_slot_is_caught),
        cmocka_unit_test(a_commit_without_its_event_is_caught),
        cmocka_unit_test(a_stale_prefix_is_caught),
        cmocka_unit_test(a_written_source_is_caught),
        cmocka_unit_test(leaked_swap_space_is_caught),
        cmocka_unit_test(swap_space_given_back_early_is_caught),
        cmocka_unit_test(content_from_the_wrong_swap_space_is_caught),
        cmocka_unit_test(a_late_put_is_caught),
        cmocka_unit_test(a_digest_before_its_put_is_caught),
        cmocka_unit_test(a_home_block_given_back_early_is_caught),
        cmocka_unit_test(a_pack_that_does_not_wait_for_its_exchange_is_caught),
        cmocka_unit_test(the_wrong_home_block_is_caught),
        cmocka_unit_test(device_blocks_without_home_blocks_are_caught),
        cmocka_unit_test(a_put_of_a_block_that_is_not_full_is_caught),
        cmocka_unit_test(a_put_that_does_not_count_is_caught),
        cmocka_unit_test(a_step_that_puts_too_much_is_caught),
        cmocka_unit_test(a_first_event_that_does_not_wait_for_puts_is_caught),
        cmocka_unit_test(a_block_written_before_its_put_is_caught),
        cmocka_unit_test(a_home_block_given_back_during_a_prompt_is_caught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
