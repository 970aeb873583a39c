/* assets.h - the files that are part of the program: the page at / and the description of the
 * routes at /openapi.json. NUL-terminated. Thread: any. */
#ifndef CN_ASSETS_H
#define CN_ASSETS_H

#include <stddef.h>

extern const char cn_asset_page[], cn_asset_openapi[];
extern const size_t cn_asset_page_bytes, cn_asset_openapi_bytes; /* without the NUL */

#endif
