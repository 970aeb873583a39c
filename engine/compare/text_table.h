/* text_table.h - a Markdown table with aligned columns and a row for each arm.
 *
 * Owner: the caller. Thread: any. Stage: reports. */
#pragma once

#include "engine/compare/compare_arms.h"

enum { CN_TEXT_CELL_BYTES = 48, CN_TEXT_MAX_COLUMNS = 24, CN_TEXT_LINE_BYTES = 100 };

typedef struct cn_text_table {
    const char *const *titles; /* [n_columns], at most CN_TEXT_MAX_COLUMNS */
    uint32_t n_columns, n_rows;
    /* [n_columns] The most important column first. The last ones are left out until a line fits
     * CN_TEXT_LINE_BYTES, and so are columns without any value. NULL: all columns are printed. */
    const uint32_t *by_importance;
    const cn_compare_arm *arms; /* [n_rows] their labels begin the rows */
    const void *data;           /* passed to `cell` */
    /* Writes a cell to s[CN_TEXT_CELL_BYTES]. */
    void (*cell)(const void *data, uint32_t row, uint32_t column, char *s);
} cn_text_table;

/* A line below the table says how many columns were left out. */
void cn_text_table_print(FILE *f, const cn_text_table *t);
