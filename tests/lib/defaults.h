/* defaults.h - the sampling parameters of a request that sets none: the option table's defaults. */
#pragma once

#include "engine/cinch.h"

cn_sampling default_sampling(void);
