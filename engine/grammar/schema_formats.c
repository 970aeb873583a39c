/* schema_formats.c - the patterns of formats. See schema_parts.h. A format with several rows has
 * shorter forms, for strings with a small maxLength: each is a part of the one before. "" allows
 * any string, because the format says how to show or to store it. */

#include "engine/grammar/schema_parts.h"

#define LEAP_YEAR /* from 1000 on */                  \
    "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|" \
    "(?:[2468][048]|[13579][26])00)"
#define DATE                                                          \
    "(?:[1-9][0-9]{3}-(?:(?:0[13-9]|1[0-2])-(?:0[1-9]|[12][0-9]|30)|" \
    "02-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13578]|1[02])-31)|" LEAP_YEAR "-02-29)"
#define TIME                                                       \
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,6})?" \
    "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,64}"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?" /* of a domain */
#define BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4 "(?:" BYTE "[.]){3}" BYTE
#define IPV6 "[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){7}"
#define HEX(n) "[0-9a-f]{" #n "}"
#define UUID(version) HEX(8) "-" HEX(4) "-" version HEX(3) "-[89ab]" HEX(3) "-" HEX(12)
#define URI_CHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2})"
#define URI                                                    \
    "https?://" LABEL "(?:[.]" LABEL "){0,2}[.][A-Za-z]{2,24}" \
    "(?::[1-9][0-9]{0,3})?(?:/" URI_CHAR "{0,32}){0,6}"        \
    "(?:[?](?:" URI_CHAR "|[/?]){0,96})?(?:#(?:" URI_CHAR "|[/?]){0,32})?"
#define SHORT_HOST "[a-z0-9]{1,12}[.][a-z]{2,3}"
#define TIME_PART                                      \
    "T(?:[0-9]{1,3}H(?:[0-9]{1,3}M)?(?:[0-9]{1,3}S)?|" \
    "[0-9]{1,3}M(?:[0-9]{1,3}S)?|[0-9]{1,3}S)"
static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration", "P(?:[0-9]{1,4}D(?:" TIME_PART ")?|" TIME_PART "|[0-9]{1,3}W)"},
    {"uuid", HEX(8) "(?:-" HEX(4) "){3}-" HEX(12)},
    {"uuid1", UUID("1")},
    {"uuid3", UUID("3")},
    {"uuid4", UUID("4")},
    {"uuid5", UUID("5")},
    {"uuid6", UUID("6")},
    {"uuid7", UUID("7")},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"ipvanyaddress", IPV4},
    {"ipv4network", "(?:" BYTE "[.]){3}0/24"},
    {"ipvanynetwork", "(?:" BYTE "[.]){3}0/24"},
    {"ipv4interface", IPV4 "/(?:[12]?[0-9]|3[0-2])"},
    {"ipvanyinterface", IPV4 "/(?:[12]?[0-9]|3[0-2])"},
    {"ipv6network", "[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){3}::/64"},
    {"ipv6interface", IPV6 "/(?:[1-9]?[0-9]|1[01][0-9]|12[0-8])"},
    {"hostname", LABEL "(?:[.]" LABEL "){0,3}"},
    {"hostname", SHORT_HOST},
    {"email", ATOM "(?:[.]" ATOM "){0,3}@" LABEL "(?:[.]" LABEL "){0,4}[.][A-Za-z]{2,24}"},
    {"email", "[a-z0-9]{1,24}(?:[.][a-z0-9]{1,24})?@[a-z0-9]{1,24}(?:[.][a-z]{2,3}){1,2}"},
    {"email", "[a-z0-9]{1,8}@" SHORT_HOST},
    {"uri", URI},
    {"uri",
     "https?://[a-z0-9]{1,16}(?:[.][a-z0-9]{1,16})?[.][a-z]{2,3}(?:/[a-z0-9._~-]{1,24}){0,2}"},
    {"uri", "https?://" SHORT_HOST},
    {"url", URI},
    {"byte", "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?"},
    {"binary", ""},
    {"password", ""},
    {"path", ""},
};

enum { N_FORMATS = sizeof formats / sizeof *formats };

const char *cn_schema_format_pattern(const char *name)
{
    for (size_t i = 0; i < N_FORMATS; i++)
        if (strcmp(name, formats[i].name) == 0) return formats[i].pattern;
    return NULL;
}

const char *cn_schema_shorter_format(const char *pattern)
{
    for (size_t i = 0; i + 1 < N_FORMATS; i++)
        if (strcmp(pattern, formats[i].pattern) == 0 &&
            strcmp(formats[i].name, formats[i + 1].name) == 0)
            return formats[i + 1].pattern;
    return NULL;
}
