/* options_lanes.c - --data-parallel-size and --devices: how many engines a process has, and on
 * which devices. See options.h. */
#include <stdlib.h>

#include "compress/selector.h"
#include "engine/options/option_value.h"

/* ---- the list of devices ---- */

static cn_status refuse_list(const char *text)
{
    return cn_fail(CN_ERR_ARG, "--devices %s: expected GPUs, as cuda:0-3 or cuda:0,2", text);
}

/* Reads a number of at most three digits; NULL: there is none. */
static const char *read_ordinal(const char *p, uint32_t *out)
{
    const size_t n = strspn(p, "0123456789");
    if (n == 0 || n > 3) return NULL;
    *out = (uint32_t)strtoul(p, NULL, 10);
    return p + n;
}

static cn_status add_device(cn_devices *d, const char *text, uint32_t ordinal)
{
    for (uint32_t i = 0; i < d->n; i++)
        if (d->ordinals[i] == ordinal)
            return cn_fail(CN_ERR_ARG, "--devices %s: cuda:%u is named twice: each engine needs a "
                                       "GPU of its own", text, ordinal);
    if (d->n == CN_MAX_DEVICES)
        return cn_fail(CN_ERR_ARG, "--devices %s: expected at most %d GPUs", text,
                       (int)CN_MAX_DEVICES);
    d->ordinals[d->n++] = ordinal;
    return CN_OK;
}

cn_status cn_devices_parse(cn_devices *out, const char *text)
{
    static const char prefix[] = "cuda:";
    *out = (cn_devices){0};
    if (strncmp(text, prefix, sizeof prefix - 1) != 0) return refuse_list(text);
    for (const char *p = text;;) {
        uint32_t first, last;
        if (strncmp(p, prefix, sizeof prefix - 1) == 0) p += sizeof prefix - 1;
        if (!(p = read_ordinal(p, &first))) return refuse_list(text);
        last = first;
        if (*p == '-' && !(p = read_ordinal(p + 1, &last))) return refuse_list(text);
        if (last < first) return refuse_list(text);
        for (uint32_t i = first; i <= last; i++) CN_TRY(add_device(out, text, i));
        if (!*p) return CN_OK;
        if (*p++ != ',') return refuse_list(text);
    }
}

/* ---- checks ---- */

/* Sets *n to the number of engines. */
static cn_status check_devices(const cn_config *c, uint32_t *n)
{
    cn_devices d;
    *n = c->n_lanes;
    if (!c->devices) return CN_OK;
    CN_TRY(cn_devices_parse(&d, c->devices));
    *n = d.n;
    if (cn_config_is_given(c, &c->device))
        return cn_fail(CN_ERR_ARG, "--device %s and --devices %s both choose GPUs: leave out one",
                       c->device, c->devices);
    if (cn_config_is_given(c, &c->n_lanes) && c->n_lanes != d.n)
        return cn_fail(CN_ERR_ARG, "--data-parallel-size %u needs as many devices, but --devices "
                                   "%s names %u", c->n_lanes, c->devices, d.n);
    return CN_OK;
}

cn_status cn_config_check_ranks(const cn_config *c)
{
    const uint32_t n = c->n_ranks;
    const struct {
        bool has;
        const char *option, *why;
    } uses[] = {
        {cn_config_away(c) != 0, "--kv-home, --kv-homes", "homes peer and host are"},
        {cn_selectors_need(cn_config_selectors(c)).head, "--kv-select, --kv-selectors",
         "selector spec is"},
        {c->devices != NULL, "--devices", "GPUs are"},
        {c->dump != NULL, "--dump", "dumps are"},
    };
    if (n <= 1 && cn_config_is_given(c, &c->collective_timeout_s))
        return cn_fail(CN_ERR_ARG, "--collective-timeout %u has no effect on a model that is not "
                                   "split: set --tensor-parallel-size 2, 4 or 8, or leave it out",
                       c->collective_timeout_s);
    if (n <= 1) return CN_OK;
    if (n != 2 && n != 4 && n != 8)
        return cn_fail(CN_ERR_ARG, "--tensor-parallel-size %u: expected 1, 2, 4 or 8", n);
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++)
        if (uses[i].has)
            return cn_fail(CN_ERR_ARG, "--tensor-parallel-size %u: %s not supported yet: leave out "
                                       "%s", n, uses[i].why, uses[i].option);
    if (cn_config_is_given(c, &c->n_threads))
        return cn_fail(CN_ERR_ARG, "--threads %u has no effect with --tensor-parallel-size %u: "
                                   "each rank has one thread", c->n_threads, n);
    return CN_OK;
}

cn_status cn_config_check_lanes(const cn_config *c)
{
    uint32_t n;
    CN_TRY(check_devices(c, &n));
    if (n == 1) return CN_OK;
    if (strchr(c->device, ':'))
        return cn_fail(CN_ERR_ARG, "--device %s names one GPU, but there are %u engines: list "
                                   "their GPUs with --devices", c->device, n);
    if (cn_config_away(c) >> CN_HOME_PEER & 1)
        return cn_fail(CN_ERR_ARG, "kv home peer needs a cache device for each engine, which "
                                   "--data-parallel-size %u cannot name: use kv home host, or a "
                                   "process for each pair of GPUs (--shard)", n);
    return CN_OK;
}
