/* assets.h - files embedded in the program: the page at / and the route description at
 * /openapi.json. NUL-terminated. Thread: any. */
#ifndef CN_ASSETS_H
#define CN_ASSETS_H

extern const char cn_asset_page[], cn_asset_openapi[];

#endif
