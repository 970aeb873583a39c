/* defaults.h - the sampling parameters of a request that sets none: the option table's defaults. */
#ifndef CN_TEST_DEFAULTS_H
#define CN_TEST_DEFAULTS_H

#include "engine/cinch.h"

cn_sampling default_sampling(void);

#endif
