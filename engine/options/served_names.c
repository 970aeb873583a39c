/* served_names.c - the names of the model in requests and responses. See options.h. */
#include <stdlib.h>

#include "engine/options/options.h"

/* The last part of the path of the model's directory. */
static char *directory_name(const char *path)
{
    char *real = realpath(path, NULL);
    const char *full = real ? real : path, *slash = strrchr(full, '/');
    char *name = cn_strdup(slash && slash[1] ? slash + 1 : full);
    free(real);
    return name;
}

cn_status cn_served_names_make(cn_served_names *out, const cn_config *c)
{
    *out = (cn_served_names){0};
    const bool given = c->served_model_name != NULL;
    out->text = given ? cn_strdup(c->served_model_name) : directory_name(c->model);
    if (!out->text) return cn_fail(CN_ERR_MEMORY, "out of memory for the name of the model");
    out->names[out->n++] = out->text;
    for (char *p = out->text; given && out->n < CN_MAX_SERVED_NAMES && (p = strchr(p, ','));) {
        *p++ = '\0';
        out->names[out->n++] = p;
    }
    return CN_OK;
}

void cn_served_names_free(cn_served_names *s)
{
    cn_free(s->text);
    *s = (cn_served_names){0};
}

bool cn_served_names_have(const cn_served_names *s, const char *name)
{
    uint32_t i = 0;
    while (i < s->n && strcmp(s->names[i], name) != 0) i++;
    return i < s->n;
}
