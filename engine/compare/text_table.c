/* text_table.c - see text_table.h. */
#include "engine/compare/text_table.h"

#include <string.h>

static size_t widest(const cn_text_table *t, uint32_t column)
{
    char cell[CN_TEXT_CELL_BYTES];
    size_t width = strlen(t->titles[column]);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        t->cell(t->data, r, column, cell);
        if (strlen(cell) > width) width = strlen(cell);
    }
    return width;
}

void cn_text_table_print(FILE *f, const cn_text_table *t)
{
    static const char dashes[] = "----------------------------------------------------------------";
    char cell[CN_TEXT_CELL_BYTES];
    size_t width[CN_TEXT_MAX_COLUMNS], label_width = strlen(t->corner);
    CN_ASSERT(t->n_columns <= CN_TEXT_MAX_COLUMNS);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        const size_t n = strlen(t->label(t->data, r));
        if (n > label_width) label_width = n;
    }
    for (uint32_t c = 0; c < t->n_columns; c++) width[c] = widest(t, c);
    fprintf(f, "| %-*s |", (int)label_width, t->corner);
    for (uint32_t c = 0; c < t->n_columns; c++) fprintf(f, " %*s |", (int)width[c], t->titles[c]);
    fprintf(f, "\n|%.*s|", (int)label_width + 2, dashes);
    for (uint32_t c = 0; c < t->n_columns; c++) fprintf(f, "%.*s:|", (int)width[c] + 1, dashes);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        fprintf(f, "\n| %-*s |", (int)label_width, t->label(t->data, r));
        for (uint32_t c = 0; c < t->n_columns; c++) {
            t->cell(t->data, r, c, cell);
            fprintf(f, " %*s |", (int)width[c], cell);
        }
    }
    fprintf(f, "\n");
    fflush(f);
}
