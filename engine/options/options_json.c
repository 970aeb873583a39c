/* options_json.c - options in a request's JSON: the rows with a `json` key, with the same bounds as
 * their flags. See options.h. */
#include <stdlib.h>

#include "compress/away.h"
#include "compress/policy.h"
#include "compress/selector.h"
#include "engine/base/json.h"
#include "engine/options/option_value.h"

enum { KEY_MAX_BYTES = 64 };

static const cn_option *find_key(const char *key, uint32_t sections)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++)
        if (o[i].json && o[i].section & sections && strcmp(o[i].json, key) == 0) return &o[i];
    return NULL;
}

/* Whether the key of some row is a member of the object `key`. */
static bool is_object_key(const char *key, uint32_t sections)
{
    size_t n, len = strlen(key);
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++)
        if (o[i].json && o[i].section & sections && strncmp(o[i].json, key, len) == 0 &&
            o[i].json[len] == '.')
            return true;
    return false;
}

/* A request has its own cn_sampling and cn_kv_params, so the offset of a field in cn_config is
 * converted to an offset in these structs. */
static void *request_field(const cn_option *o, cn_sampling *s, cn_kv_params *kv)
{
    if (o->section == CN_SECTION_SAMPLING)
        return (char *)s + (o->offset - offsetof(struct cn_config, sampling));
    CN_ASSERT(o->section == CN_SECTION_KV);
    return (char *)kv + (o->offset - offsetof(struct cn_config, kv));
}

static cn_status set_value(const cn_option *o, void *field, const json_t *value)
{
    bool ok = false;
    if (o->type == CN_OPTION_BOOL) {
        ok = json_is_boolean(value);
        if (ok) *(bool *)field = json_is_true(value);
    } else if (o->type == CN_OPTION_ENUM && json_is_string(value)) {
        int index = cn_option_name_index(o, json_string_value(value), json_string_length(value));
        ok = index >= 0;
        if (ok) *(int *)field = index;
    } else if (json_is_number(value)) {
        ok = cn_option_store_number(o, field, json_number_value(value));
    }
    if (ok) return CN_OK;
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    char shown[KEY_MAX_BYTES];
    cn_json_printable(text ? text : "value", shown, sizeof shown);
    cn_status status = cn_option_refuse(o, o->json, shown);
    free(text);
    return status;
}

static cn_status set_members(cn_sampling *s, cn_kv_params *kv, uint32_t sections, const char *key,
                             json_t *object)
{
    if (!json_is_object(object)) return cn_fail(CN_ERR_ARG, "%s: expected an object", key);
    const char *member;
    json_t *value;
    json_object_foreach(object, member, value)
    {
        char path[2 * KEY_MAX_BYTES], shown[KEY_MAX_BYTES];
        int n = snprintf(path, sizeof path, "%s.%s", key, member);
        const cn_option *o = n < (int)sizeof path ? find_key(path, sections) : NULL;
        if (!o)
            return cn_fail(CN_ERR_ARG, "%s: unknown member '%s'", key,
                           cn_json_printable(member, shown, sizeof shown));
        if (!json_is_null(value)) CN_TRY(set_value(o, request_field(o, s, kv), value));
    }
    return CN_OK;
}

cn_status cn_request_set_json(cn_sampling *s, cn_kv_params *kv, uint32_t sections, const char *key,
                              json_t *value, bool *known)
{
    const cn_option *o = strchr(key, '.') ? NULL : find_key(key, sections);
    bool object = !o && is_object_key(key, sections);
    *known = o || object;
    if (!*known || json_is_null(value)) return CN_OK;
    if (object) return set_members(s, kv, sections, key, value);
    return set_value(o, request_field(o, s, kv), value);
}

/* Whether this policy, or the selector or the home of kv, reads the member `key`. */
static bool is_param(const cn_kv_params *kv, cn_kv_policy policy, const char *key)
{
    return cn_option_is_word(cn_policy_params(policy, kv->rule), key) ||
           cn_option_is_word(cn_selector_of(kv->select)->params, key) ||
           cn_option_is_word(cn_away_params(kv), key);
}

const char *cn_kv_silencer(const cn_kv_params *kv, const char *key)
{
    if (!cn_policy_ranks(kv->policy)) return NULL;
    if (!cn_option_is_word(cn_rule_of(kv->rule)->params, key)) return NULL;
    if (kv->redundancy == CN_REDUNDANCY_NONE && cn_option_is_word("p tau lambda combine", key))
        return "redundancy none";
    /* With peak, probabilities decay inside an event too. */
    const bool in_event = cn_rule_of(kv->rule)->form == CN_FORM_PEAK;
    return !kv->global_score && !in_event && strcmp(key, "alpha") == 0 ? "global false" : NULL;
}

bool cn_kv_reads(const cn_kv_params *kv, const char *key)
{
    if (cn_kv_silencer(kv, key)) return false;
    const cn_kv_policy stays = /* what is kept on the device with a home elsewhere, by default */
        cn_kv_is_away(kv) && kv->policy == CN_KV_FULL ? CN_KV_WINDOW : kv->policy;
    return cn_option_is_word("policy select home", key) || is_param(kv, stays, key);
}

/* The value of a kv parameter; a new reference. */
static json_t *value_json(const cn_option *o, const void *field)
{
    switch (o->type) {
    case CN_OPTION_BOOL: return json_boolean(*(const bool *)field);
    case CN_OPTION_U32: return json_integer(*(const uint32_t *)field);
    case CN_OPTION_F32: return json_real((double)*(const float *)field);
    case CN_OPTION_ENUM: {
        const char *name = o->values;
        for (int i = *(const int *)field; i > 0; i--) name = strchr(name, '|') + 1;
        return json_stringn(name, strcspn(name, "|"));
    }
    default: return NULL; /* no parameter of a policy has another type */
    }
}

json_t *cn_kv_params_json(const cn_kv_params *kv)
{
    const cn_policy *policy = cn_policy_of(kv->policy);
    const cn_selector *selector = cn_selector_of(kv->select);
    json_t *object = json_object();
    size_t n;
    const cn_option *o = cn_options(&n);
    json_object_set_new(object, "policy", json_string(policy->name));
    if (kv->select != CN_SELECT_NONE)
        json_object_set_new(object, "select", json_string(selector->name));
    for (size_t i = 0; i < n; i++) {
        const char *key = cn_option_kv_key(&o[i]);
        if (!key) continue;
        const size_t at = o[i].offset - offsetof(struct cn_config, kv);
        if (is_param(kv, kv->policy, key))
            json_object_set_new(object, key, value_json(&o[i], (const char *)kv + at));
    }
    return object;
}
