/* http_origin.c - which names and pages may use a server without API keys. See http_state.h.
 *
 * A web page may make its reader's browser send requests to a server that only the reader can
 * reach. The browser names the page in Origin. A page whose own name resolves to the server's
 * address sends that name as Host. With keys neither matters: the page does not know a key. */
#include <arpa/inet.h>
#include <strings.h>
#include <unistd.h>

#include "engine/serve/http/http_state.h"

enum { MAX_NAME = 256, MAX_HOST = 2 * MAX_NAME };

/* Copies the name of "name:port" or "[address]:port". False: too long. */
static bool origin_name_of(const char *host, char name[MAX_NAME])
{
    const bool bracket = *host == '[';
    const size_t n = bracket ? strcspn(host + 1, "]") : strcspn(host, ":");
    if (n == 0 || n >= MAX_NAME) return false;
    memcpy(name, host + bracket, n);
    name[n] = '\0';
    return true;
}

bool http_list_has(const char *list, const char *name)
{
    for (const char *p = list; p && *p;) {
        const size_t n = strcspn(p, ",");
        if ((n == 1 && *p == '*') || (n == strlen(name) && strncasecmp(p, name, n) == 0))
            return true;
        p += n + (p[n] == ',');
    }
    return false;
}

static bool is_own_name(const cn_http_opts *o, const char *name)
{
    char machine[MAX_NAME] = "";
    struct in_addr v4;
    struct in6_addr v6;
    if (strcasecmp(name, "localhost") == 0 || (o->host && strcasecmp(name, o->host) == 0))
        return true;
    if (inet_pton(AF_INET, name, &v4) == 1 || inet_pton(AF_INET6, name, &v6) == 1) return true;
    return gethostname(machine, sizeof machine - 1) == 0 && strcasecmp(name, machine) == 0;
}

/* Returns the host of a request, with its port; NULL when it names none. text: room for it. One
 * that does not fit is not an allowed name. */
static const char *host_of(const cn_http_head *h, char text[MAX_HOST])
{
    if (!h->authority) return cn_http_header(h, "Host");
    snprintf(text, MAX_HOST, "%.*s", (int)h->n_authority, h->authority);
    return h->n_authority < MAX_HOST ? text : "";
}

bool http_origin_is_allowed(cn_exchange *x)
{
    const cn_http_opts *o = &x->conn->server->o;
    char text[MAX_HOST];
    const char *host = host_of(&x->head, text);
    const char *origin = cn_http_header(&x->head, "Origin");
    char name[MAX_NAME] = "";
    if (o->keys && cn_api_keys_count(o->keys) > 0) return true;
    const bool named = host && origin_name_of(host, name);
    if (host && !(named && is_own_name(o, name)) && !http_list_has(o->allowed_hosts, name)) {
        cn_exchange_error(x, CN_HTTP_FORBIDDEN,
                          "Host: this name may not be used for a server without API keys: add it "
                          "to --allowed-hosts, or set --api-key-file", NULL, "host_not_allowed");
        return false;
    }
    const char *page = origin ? strstr(origin, "://") : NULL;
    const bool own = page && host && strcasecmp(page + 3, host) == 0;
    if (origin && !own && !http_list_has(o->allowed_origins, origin)) {
        cn_exchange_error(x, CN_HTTP_FORBIDDEN,
                          "Origin: pages of other sites may not use a server without API keys: add "
                          "it to --allowed-origins, or set --api-key-file",
                          NULL, "origin_not_allowed");
        return false;
    }
    return true;
}
