/* server_parts.h - the parts of the server: their tables of hooks.
 * Owner: none, they are constant. Thread: HTTP. */
#pragma once

#include "engine/serve/server.h"

extern const cn_server_part cn_openai_part; /* /v1/chat/completions and the like, /v1/models */
extern const cn_server_part cn_basics_part; /* /tokenize, /detokenize, /health, /version */
extern const cn_server_part cn_status_part; /* /metrics, /stats, /openapi.json, the page at / */
extern const cn_server_part cn_spool_server_part; /* /v1/files, /v1/batches */
