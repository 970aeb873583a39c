/* text_table.h - a Markdown table with aligned columns.
 *
 * Owner: the caller. Thread: any. Stage: reports. */
#pragma once

#include "engine/base/base.h"

enum { CN_TEXT_CELL_BYTES = 48, CN_TEXT_MAX_COLUMNS = 24, CN_TEXT_LINE_BYTES = 100 };

typedef struct cn_text_table {
    const char *corner;        /* title of the labels */
    const char *const *titles; /* [n_columns], at most CN_TEXT_MAX_COLUMNS */
    uint32_t n_columns, n_rows;
    /* [n_columns] The most important column first. The last ones are left out until a line fits
     * CN_TEXT_LINE_BYTES, and so are columns without any value. NULL: all columns are printed. */
    const uint32_t *by_importance;
    const void *data; /* passed to the functions */
    const char *(*label)(const void *data, uint32_t row);
    /* Writes a cell to s[CN_TEXT_CELL_BYTES]. */
    void (*cell)(const void *data, uint32_t row, uint32_t column, char *s);
} cn_text_table;

/* Returns the number of columns that were left out. */
uint32_t cn_text_table_print(FILE *f, const cn_text_table *t);
