/* assets.c - embeds files unchanged with the assembler's .incbin. The Makefile lists them as
 * dependencies of this file. See assets.h. */
#include "engine/serve/routes/assets.h"

#define INCLUDE_FILE(symbol, path)                   \
    __asm__(".pushsection .rodata\n"                 \
            ".global " #symbol "\n" #symbol ":\n"    \
            ".incbin \"" path "\"\n"                 \
            ".byte 0\n"                              \
            ".popsection\n")

INCLUDE_FILE(cn_asset_page, "engine/serve/routes/page.html");
INCLUDE_FILE(cn_asset_openapi, "engine/serve/routes/openapi.json");
