/* compare_forced.h - `cinch compare --continue-field`: forces the continuation of every document
 * under every arm, prints a table per file and writes the JSON file.
 *
 * Owner: cinch compare. Thread: main. Stage: around all stages. */
#pragma once

#include "engine/compare/compare_arms.h"
#include "engine/engine.h"

/* Runs the files paths[n_paths]. The JSON file is rewritten after every group of documents, so that
 * a comparison that is stopped keeps what it has measured. */
cn_status cn_compare_forced(cn_engine *e, const cn_compare_arms *arms, const char *const *paths,
                            uint32_t n_paths);
