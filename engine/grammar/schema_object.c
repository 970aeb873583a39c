/* schema_object.c - objects of a schema: named members in order, then others, and their number. See
 * schema_object.h. */
#include "engine/grammar/schema_object.h"

enum { NOWHERE = UINT32_MAX, MAX_COUNTED = 4096 };

/* The members read so far are counted up to `last`: as far as their number matters. Without a limit
 * `last` stands for more too. */
typedef struct object_job {
    cn_schema_job *job;
    const cn_schema_members *m;
    cn_net *net;
    uint32_t last, end;
    bool limited;
    uint32_t *at, *next; /* [last + 1] nodes, by the count; NOWHERE: none */
} object_job;

/* ---- named members ---- */

/* Leads to `to` from the nodes with this count, over a comma unless it is 0. */
static void join_count(const object_job *o, uint32_t count, uint32_t to)
{
    const uint32_t from = o->at[count];
    if (from == NOWHERE) return;
    cn_net_empty(o->net, count > 0 ? cn_json_mark(o->net, &o->job->rules, from, ',') : from, to);
}

static void emit_member(object_job *o, const cn_schema_member *member)
{
    for (uint32_t c = 0; c <= o->last; c++) o->next[c] = NOWHERE;
    for (uint32_t to = 1; to <= o->last && o->net->status == CN_OK; to++) {
        const bool from_last = to == o->last && !o->limited && o->at[to] != NOWHERE;
        if (o->at[to - 1] == NOWHERE && !from_last) continue;
        const uint32_t here = cn_net_node_new(o->net);
        join_count(o, to - 1, here);
        if (from_last) join_count(o, to, here);
        const uint32_t name = cn_net_text(o->net, here, member->text, strlen(member->text));
        o->next[to] = cn_net_node_new(o->net);
        cn_net_call(o->net, cn_json_mark(o->net, &o->job->rules, name, ':'), o->next[to],
                    member->value);
    }
    for (uint32_t c = 0; c <= o->last && !member->required; c++) {
        if (o->at[c] == NOWHERE) continue;
        if (o->next[c] == NOWHERE)
            o->next[c] = o->at[c];
        else
            cn_net_empty(o->net, o->at[c], o->next[c]);
    }
    uint32_t *swapped = o->at;
    o->at = o->next;
    o->next = swapped;
}

/* ---- others ---- */

static void close_object(const object_job *o, uint32_t from, bool empty)
{
    cn_net_byte(o->net, empty ? from : cn_json_space(o->net, &o->job->rules, from), o->end, '}',
                '}');
}

/* One member of another name, over a comma unless it is the first. */
static void emit_other(const object_job *o, uint32_t from, uint32_t to, bool first)
{
    if (!first) from = cn_json_mark(o->net, &o->job->rules, from, ',');
    for (uint32_t i = 0; i < o->m->n_groups; i++) {
        const uint32_t name = cn_net_node_new(o->net);
        cn_net_call(o->net, from, name, o->m->groups[i].name);
        cn_net_call(o->net, cn_json_mark(o->net, &o->job->rules, name, ':'), to,
                    o->m->groups[i].value);
    }
}

/* Any number of others after `some`. */
static void emit_unlimited(const object_job *o)
{
    const uint32_t some = cn_net_node_new(o->net);
    for (uint32_t c = 0; c <= o->last && o->net->status == CN_OK; c++) {
        if (o->at[c] == NOWHERE) continue;
        const bool enough = c >= o->m->least;
        if (enough && c > 0) cn_net_empty(o->net, o->at[c], some);
        if (enough && c == 0) close_object(o, o->at[c], true);
        if (c == 0 || !enough)
            if (c + 1 >= o->m->least) emit_other(o, o->at[c], some, c == 0);
    }
    close_object(o, some, false);
    if (o->m->n_groups > 0) emit_other(o, some, some, false);
}

/* At total[i] i members were read, enough of which differ in their names. */
static void emit_limited(const object_job *o)
{
    const uint32_t most = cn_min_u32(o->m->most, MAX_COUNTED);
    uint32_t before = NOWHERE;
    for (uint32_t i = 0; i <= most && o->net->status == CN_OK; i++) {
        const uint32_t total = cn_net_node_new(o->net);
        const uint32_t from = i <= o->last ? o->at[i] : NOWHERE;
        if (before != NOWHERE) emit_other(o, before, total, i == 1);
        if (from != NOWHERE && i >= o->m->least) cn_net_empty(o->net, from, total);
        if (i > 0 && i - 1 <= o->last && o->at[i - 1] != NOWHERE && i == o->m->least)
            emit_other(o, o->at[i - 1], total, i == 1);
        close_object(o, total, i == 0);
        before = o->m->n_groups > 0 ? total : NOWHERE;
        if (before == NOWHERE && i >= o->last) break;
    }
}

/* ---- objects ---- */

static void emit_members(object_job *o, cn_net_rule rule)
{
    for (uint32_t c = 0; c <= o->last; c++) o->at[c] = NOWHERE;
    o->at[0] = cn_json_mark(o->net, &o->job->rules, rule.start, '{');
    for (size_t i = 0; i < o->m->n && o->net->status == CN_OK; i++) emit_member(o, &o->m->list[i]);
    if (o->limited)
        emit_limited(o);
    else
        emit_unlimited(o);
}

static cn_status emit_object_counted(cn_schema_job *job, const cn_schema_members *m,
                                     cn_net_rule rule)
{
    uint32_t n_required = 0, n = (uint32_t)m->n;
    for (size_t i = 0; i < m->n; i++) n_required += m->list[i].required;
    const bool limited = m->most < UINT32_MAX && (m->most < n || m->n_groups > 0);
    const uint32_t least = m->least > n_required ? m->least : 0;
    object_job o = {.job = job, .m = m, .net = job->net, .limited = limited, .end = rule.end};
    o.last = limited ? cn_min_u32(n, m->most) : cn_max_u32(1, cn_min_u32(n, least));
    cn_schema_members counted = *m;
    counted.least = least;
    o.m = &counted;
    o.at = cn_calloc(o.last + 2, sizeof *o.at);
    o.next = cn_calloc(o.last + 2, sizeof *o.next);
    const bool made = o.at && o.next;
    if (made) emit_members(&o, rule);
    cn_free(o.at);
    cn_free(o.next);
    return made ? job->net->status : cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
}

cn_status cn_schema_emit_object(cn_schema_job *job, uint32_t part, cn_net_rule rule)
{
    cn_schema_members m = {0};
    cn_status status = cn_schema_find_members(job, part, &m);
    if (status == CN_OK) status = emit_object_counted(job, &m, rule);
    cn_schema_members_free(&m);
    return status;
}
