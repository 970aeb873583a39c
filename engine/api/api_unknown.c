/* api_unknown.c - see api_unknown.h. */
#include "engine/api/api_unknown.h"

#include "engine/base/json.h"

enum { SHOWN_BYTES = 96 };

void cn_api_unknown_init(cn_api_unknown *u, bool refuse)
{
    *u = (cn_api_unknown){.refuse = refuse};
    pthread_mutex_init(&u->lock, NULL);
}

void cn_api_unknown_destroy(cn_api_unknown *u) { pthread_mutex_destroy(&u->lock); }

/* True the first time that it is called with this name, while the table has room. */
static bool is_new(cn_api_unknown *u, const char *key)
{
    const uint64_t hash = cn_hash64(0, key, strlen(key));
    uint32_t i = 0;
    pthread_mutex_lock(&u->lock);
    while (i < u->n_logged && u->logged[i] != hash) i++;
    const bool fresh = i == u->n_logged && i < CN_API_LOGGED_NAMES;
    if (fresh) u->logged[u->n_logged++] = hash;
    pthread_mutex_unlock(&u->lock);
    return fresh;
}

cn_status cn_api_ignore(cn_api_unknown *u, const char *key, const char *why, const json_t *value,
                        json_t **warnings)
{
    char name[SHOWN_BYTES], shown[SHOWN_BYTES];
    cn_json_printable(key, name, sizeof name);
    if (!u || u->refuse)
        return cn_fail(CN_ERR_ARG, "%s: %s, got %s", name, why,
                       cn_json_describe(value, shown, sizeof shown));
    if (is_new(u, key))
        cn_log(CN_LOG_WARN, "a request has the field %s, which is ignored: %s (--unknown-fields "
               "refuse makes this an error)", name, why);
    size_t i;
    json_t *other, *warning = json_sprintf("%s: %s, ignored", name, why);
    if (!*warnings) *warnings = json_array();
    bool listed = json_array_size(*warnings) >= CN_API_MAX_WARNINGS;
    json_array_foreach(*warnings, i, other) listed = listed || json_equal(other, warning);
    const bool ok = warning && *warnings && (listed || json_array_append(*warnings, warning) == 0);
    json_decref(warning);
    return ok ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for a warning");
}

cn_status cn_api_unknown_take(cn_api_unknown *u, const char *key, const json_t *value,
                              json_t **warnings)
{
    const bool guided = strncmp(key, "guided_", 7) == 0; /* of older vLLM servers */
    const char *why = guided ? "unknown field (use structured_outputs)" : "unknown field";
    return cn_api_ignore(u, key, why, value, warnings);
}

cn_status cn_api_unknown_members(cn_api_unknown *u, const json_t *o, const char *const *known,
                                 json_t **warnings)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)o, key, value)
    {
        if (!cn_json_is_named(known, key) && !json_is_null(value))
            CN_TRY(cn_for_param(cn_api_unknown_take(u, key, value, warnings), key));
    }
    return CN_OK;
}
