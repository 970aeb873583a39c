/* text_table.h - a Markdown table with aligned columns.
 *
 * Owner: the caller. Thread: any. Stage: reports. */
#ifndef CN_TEXT_TABLE_H
#define CN_TEXT_TABLE_H

#include "engine/base.h"

enum { CN_TEXT_CELL_BYTES = 48, CN_TEXT_MAX_COLUMNS = 24 };

typedef struct cn_text_table {
    const char *corner;        /* title of the labels */
    const char *const *titles; /* [n_columns], at most CN_TEXT_MAX_COLUMNS */
    uint32_t n_columns, n_rows;
    const void *data; /* passed to the functions */
    const char *(*label)(const void *data, uint32_t row);
    /* Writes a cell to s[CN_TEXT_CELL_BYTES]. */
    void (*cell)(const void *data, uint32_t row, uint32_t column, char *s);
} cn_text_table;

void cn_text_table_print(FILE *f, const cn_text_table *t);

#endif
