/* jinja_pystring.h - Python's string functions over UTF-8. Positions and lengths count characters
 * where the name says so, else bytes. An invalid byte counts as one character.
 * Private to engine/text/jinja/. No state. */
#pragma once

#include "engine/text/jinja/jinja_value.h"

/* The first character of t, t.n > 0. Returns its bytes. */
size_t cn_pychar(cn_jtext t, uint32_t *cp);

bool cn_pyspace(uint32_t cp); /* str.isspace() of one character */
bool cn_pydigit(uint32_t cp); /* ASCII */
bool cn_pyalpha(uint32_t cp);
uint32_t cn_pyupper(uint32_t cp); /* one character for one; Python makes SS of ß */
uint32_t cn_pylower(uint32_t cp);
bool cn_pyprintable(uint32_t cp); /* repr() shows it as it is */

size_t cn_pylen(cn_jtext t);                  /* characters */
size_t cn_pyoffset(cn_jtext t, size_t chars); /* byte of a character; t.n beyond the end */

typedef enum cn_pyside { CN_PY_LEFT = 1, CN_PY_RIGHT = 2, CN_PY_BOTH = 3 } cn_pyside;

/* strip(chars); chars.at NULL: white space. */
cn_jtext cn_pystrip(cn_jtext t, cn_jtext chars, cn_pyside side);
/* Byte of the first or last occurrence; SIZE_MAX: none. */
size_t cn_pyfind(cn_jtext t, cn_jtext part);
size_t cn_pyrfind(cn_jtext t, cn_jtext part);
bool cn_pystarts(cn_jtext t, cn_jtext prefix);
bool cn_pyends(cn_jtext t, cn_jtext suffix);
/* Cuts the first line off *rest, without its line end, as splitlines() does. False: *rest is
 * empty. */
bool cn_pyline(cn_jtext *rest, cn_jtext *line);
