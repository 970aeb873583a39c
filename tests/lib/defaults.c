/* defaults.c - see defaults.h. */
#include "tests/lib/defaults.h"

#include "engine/options/options.h"

cn_sampling default_sampling(void)
{
    cn_config *c = cn_config_create();
    CN_ASSERT(c);
    const cn_sampling s = c->sampling;
    cn_config_free(c);
    return s;
}
