/* json_pointer.c - see json_pointer.h. */
#include "engine/base/json_pointer.h"

#include <stdlib.h>

#include "engine/base/base.h"

static int pointer_hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

void cn_json_decode_percent(char *text)
{
    char *out = text;
    for (const char *at = text; *at; at++) {
        const int high = *at == '%' ? pointer_hex_value(at[1]) : -1;
        const int low = high >= 0 ? pointer_hex_value(at[2]) : -1;
        if (low > 0 || (low == 0 && high > 0)) {
            *out++ = (char)(high * 16 + low);
            at += 2;
        } else {
            *out++ = *at;
        }
    }
    *out = '\0';
}

/* Decodes ~0 and ~1 in place. */
static void decode_tilde(char *name)
{
    char *out = name;
    for (const char *at = name; *at; at++) {
        const bool escaped = *at == '~' && (at[1] == '0' || at[1] == '1');
        *out++ = !escaped ? *at : *++at == '0' ? '~' : '/';
    }
    *out = '\0';
}

static json_t *member_of(json_t *v, const char *name)
{
    const size_t n = strlen(name);
    if (!json_is_array(v)) return json_object_get(v, name);
    const bool index =
        n > 0 && n < 9 && strspn(name, "0123456789") == n && (*name != '0' || n == 1);
    return index ? json_array_get(v, (size_t)strtoul(name, NULL, 10)) : NULL;
}

json_t *cn_json_follow(json_t *at, char *pointer)
{
    while (at && *pointer == '/') {
        char *name = pointer + 1, *end = name + strcspn(name, "/");
        const bool more = *end == '/';
        *end = '\0';
        decode_tilde(name);
        at = member_of(at, name);
        if (!more) return at;
        pointer = end;
        *pointer = '/';
    }
    return *pointer ? NULL : at;
}

json_t *cn_json_find_ref(const json_t *root, const char *ref)
{
    char *copy = *ref == '#' ? cn_strdup(ref + 1) : NULL;
    if (!copy) return NULL;
    cn_json_decode_percent(copy);
    json_t *found = cn_json_follow((json_t *)root, copy);
    cn_free(copy);
    return found;
}
