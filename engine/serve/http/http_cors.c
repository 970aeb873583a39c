/* http_cors.c - cross-origin requests of browsers: the headers of --allowed-origins. See
 * http_state.h.
 *
 * A page sends its key in Authorization. Cookies are not used: credentials are not allowed. */

#include "engine/serve/http/http_state.h"

static const char *allowed_origin(const cn_exchange *x)
{
    const char *origin = cn_http_header(&x->head, "Origin");
    return origin && http_list_has(x->conn->server->o.allowed_origins, origin) ? origin : NULL;
}

void http_cors_allow(cn_exchange *x)
{
    const char *origin = allowed_origin(x);
    if (x->conn->server->o.allowed_origins) cn_exchange_set_header(x, "Vary", "Origin");
    if (!origin) return;
    cn_exchange_set_header(x, "Access-Control-Allow-Origin", origin);
    cn_exchange_set_header(x, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
}

bool http_cors_preflight(cn_exchange *x)
{
    const char *headers = cn_http_header(&x->head, "Access-Control-Request-Headers");
    if (x->head.method != CN_HTTP_OPTIONS || !allowed_origin(x) ||
        !cn_http_header(&x->head, "Access-Control-Request-Method"))
        return false;
    cn_exchange_set_header(x, "Access-Control-Allow-Methods", "GET, POST, DELETE");
    if (headers) cn_exchange_set_header(x, "Access-Control-Allow-Headers", headers);
    cn_exchange_set_header(x, "Access-Control-Max-Age", "600");
    cn_exchange_reply(x, CN_HTTP_OK, "text/plain", "", 0);
    return true;
}
