/* schema_names.c - names of members that are none of those in `properties`. See schema_object.h. */
#include "engine/grammar/schema_object.h"

enum { MAX_NAME_BYTES = 256 };

typedef struct other_names {
    cn_schema_job *job;
    uint32_t character, escaped, beyond; /* rules of a character: any, one that must be escaped,
                                          * one beyond ASCII */
    uint32_t free, end; /* after bytes that begin no known name; after the closing quote */
} other_names;

/* Leaves the known names: reads a character that none of them has here. A name with an escape or a
 * character beyond ASCII here excludes all of that kind. */
static void leave_names(const other_names *o, const bool *known, uint32_t from)
{
    cn_net *net = o->job->net;
    bool beyond = false;
    for (int b = 0x80; b < 256; b++) beyond |= known[b];
    for (int b = 0x20, last; b < 0x80; b = last + 1) {
        last = b;
        if (b == '"' || b == '\\' || known[b]) continue;
        while (last + 1 < 0x80 && last + 1 != '"' && last + 1 != '\\' && !known[last + 1]) last++;
        cn_net_byte(net, from, o->free, (uint8_t)b, (uint8_t)last);
    }
    if (!known['\\']) cn_net_call(net, from, o->free, o->escaped);
    if (!beyond) cn_net_call(net, from, o->free, o->beyond);
}

/* `names`, as in JSON without the quotes, are sorted and have the same first `at` bytes, which were
 * read. */
static void emit_names(const other_names *o, const cn_net_word *names, size_t n, size_t at,
                       uint32_t from)
{
    cn_net *net = o->job->net;
    bool known[256] = {false};
    if (!cn_net_spend(net, sizeof known / 8 + n)) return;
    if (n == 0 || names[0].len > at) cn_net_byte(net, from, o->end, '"', '"');
    for (size_t i = 0; i < n; i++)
        if (names[i].len > at) known[(uint8_t)names[i].bytes[at]] = true;
    leave_names(o, known, from);
    for (size_t i = 0; i < n;) {
        size_t end = i + 1;
        if (names[i].len == at) {
            i++;
            continue;
        }
        while (end < n && names[end].bytes[at] == names[i].bytes[at]) end++;
        const uint32_t next = cn_net_text(net, from, &names[i].bytes[at], 1);
        emit_names(o, names + i, end - i, at + 1, next);
        i = end;
    }
}

/* A rule that reads a character of the set in a JSON string. */
static uint32_t character_rule(cn_net *net, const cn_charset *set)
{
    const uint32_t rule = cn_net_rule_new(net);
    if (net->status != CN_OK) return rule;
    cn_charset_emit(set, CN_TEXT_JSON, net, net->rules[rule].start, net->rules[rule].end);
    return rule;
}

/* A rule that reads a string which is none of the names. */
cn_status cn_schema_other_names(cn_schema_job *job, uint32_t part, cn_net_word *names, size_t n,
                                uint32_t *rule)
{
    cn_net *net = job->net;
    *rule = job->rules.any_string;
    if (n == 0) return CN_OK;
    for (size_t i = 0; i < n; i++)
        if (names[i].len > MAX_NAME_BYTES)
            return cn_schema_wrong(job, part,
                                   "a property name of %zu bytes beside additionalProperties: "
                                   "expected at most %d",
                                   names[i].len, MAX_NAME_BYTES);
    cn_net_sort_words(names, n);
    *rule = cn_net_rule_new(net);
    CN_TRY(net->status);
    cn_charset all = {.n = 0}, escaped = {.n = 0}, beyond = {.n = 0};
    cn_charset_try_add(&all, 0, CN_LAST_CHAR);
    cn_charset_try_add(&escaped, 0, 0x1f);
    cn_charset_try_add(&escaped, '"', '"');
    cn_charset_try_add(&escaped, '\\', '\\');
    cn_charset_try_add(&beyond, 0x80, CN_LAST_CHAR);
    const other_names o = {.job = job,
                           .character = character_rule(net, &all),
                           .escaped = character_rule(net, &escaped),
                           .beyond = character_rule(net, &beyond),
                           .free = cn_net_node_new(net),
                           .end = net->rules[*rule].end};
    CN_TRY(net->status);
    cn_net_call(net, o.free, o.free, o.character);
    cn_net_byte(net, o.free, o.end, '"', '"');
    emit_names(&o, names, n, 0, cn_net_text(net, net->rules[*rule].start, "\"", 1));
    return net->status;
}
