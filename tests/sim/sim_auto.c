/* sim_auto.c - requests with home `auto`: half of those that would have a home elsewhere, and in a
 * third of the engines nearly all. The draw takes nothing from the run's random numbers. */
#include "engine/base/base.h"
#include "tests/sim/sim_world.h"

void sim_declare_auto(sim_world *w)
{
    cn_sched_opts *o = &w->engine;
    o->auto_homes = 1U << CN_HOME_DEVICE;
    for (int h = CN_HOME_PEER; h <= CN_HOME_HOST; h++)
        if (o->n_home_blocks[h] > 0) o->auto_homes |= 1U << h;
    /* In some engines a link is slow. */
    if (sim_mix(o->model_hash, 8) % 4 == 0) o->slow_homes = 1U << CN_HOME_HOST;
    /* Some engines have no room for `auto` on the device. */
    if (sim_mix(o->model_hash, 4) % 8 == 0) o->auto_homes &= ~(1U << CN_HOME_DEVICE);
}

void sim_draw_auto(sim_world *w, cn_kv_params *kv)
{
    const uint64_t bits = sim_mix(w->engine.model_hash ^ 5, w->r->requests);
    const bool many = sim_mix(w->engine.model_hash, 6) % 3 == 0;
    if (kv->home == CN_HOME_DEVICE || bits % 16 >= (many ? 15 : 8)) return;
    kv->home = CN_HOME_AUTO;
    /* A request with policy `zip` elsewhere never moves there. */
    if (many) kv->policy = CN_KV_WINDOW;
}

void sim_count_auto(sim_world *w)
{
    const cn_stats *s = cn_scheduler_counters(w->s);
    for (int h = 0; h < CN_N_HOMES; h++) w->r->auto_admissions[h] += s->auto_admissions[h];
    w->r->auto_moves += s->auto_moves;
}
