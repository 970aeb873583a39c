/* assets.h - files embedded in the program: the page at / and the route description at
 * /openapi.json. NUL-terminated. Thread: any. */
#pragma once

extern const char cn_asset_page[], cn_asset_openapi[];
