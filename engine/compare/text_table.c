/* text_table.c - see text_table.h. */
#include "engine/compare/text_table.h"

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

static const char dashes[] =
    "------------------------------------------------------------------------------------------"
    "------------------------------------------------------------------------------------------";

/* What is printed: 0 leaves a column out. */
typedef struct widths {
    size_t label, column[CN_TEXT_MAX_COLUMNS];
} widths;

/* Whether all cells are "-". */
static bool is_table_empty(const cn_text_table *t, uint32_t column)
{
    char cell[CN_TEXT_CELL_BYTES];
    for (uint32_t r = 0; r < t->n_rows; r++) {
        t->cell(t->data, r, column, cell);
        if (strcmp(cell, "-") != 0) return false;
    }
    return true;
}

/* Leaves out columns until a line fits. Returns how many. */
static uint32_t fit(const cn_text_table *t, widths *w)
{
    enum { LABEL_BYTES = 44 };
    size_t line = 4;
    uint32_t n_left_out = 0;
    if (!t->by_importance) return 0;
    if (w->label > LABEL_BYTES) w->label = LABEL_BYTES;
    line += w->label;
    for (uint32_t i = 0; i < t->n_columns; i++) {
        size_t *width = &w->column[t->by_importance[i]];
        const bool fits = line + *width + 3 <= CN_TEXT_LINE_BYTES;
        if (fits && !is_table_empty(t, t->by_importance[i])) {
            line += *width + 3;
        } else {
            *width = 0;
            n_left_out++;
        }
    }
    return n_left_out;
}

static void print_row(FILE *f, const cn_text_table *t, const widths *w, uint32_t row)
{
    char cell[CN_TEXT_CELL_BYTES];
    const char *label = t->arms[row].label;
    const size_t n = strlen(label);
    /* Arms of one table often begin alike: a long label is cut in the middle. */
    const int head = (int)w->label * 2 / 5, tail = (int)w->label - head - 3;
    if (n > w->label)
        fprintf(f, "\n| %.*s...%s |", head, label, label + n - tail);
    else
        fprintf(f, "\n| %-*s |", (int)w->label, label);
    for (uint32_t c = 0; c < t->n_columns; c++) {
        if (!w->column[c]) continue;
        t->cell(t->data, row, c, cell);
        fprintf(f, " %*s |", (int)w->column[c], cell);
    }
}

void cn_text_table_print(FILE *f, const cn_text_table *t)
{
    static const char corner[] = "arm";
    widths w = {.label = strlen(corner)};
    CN_ASSERT(t->n_columns <= CN_TEXT_MAX_COLUMNS);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        const size_t n = strlen(t->arms[r].label);
        if (n > w.label) w.label = n;
    }
    for (uint32_t c = 0; c < t->n_columns; c++) w.column[c] = widest(t, c);
    const uint32_t n_left_out = fit(t, &w);
    fprintf(f, "| %-*s |", (int)w.label, corner);
    for (uint32_t c = 0; c < t->n_columns; c++)
        if (w.column[c]) fprintf(f, " %*s |", (int)w.column[c], t->titles[c]);
    fprintf(f, "\n|%.*s|", (int)w.label + 2, dashes);
    for (uint32_t c = 0; c < t->n_columns; c++)
        if (w.column[c]) fprintf(f, "%.*s:|", (int)w.column[c] + 1, dashes);
    for (uint32_t r = 0; r < t->n_rows; r++) print_row(f, t, &w, r);
    fprintf(f, "\n");
    fflush(f);
    if (n_left_out) fprintf(f, "\n%u more columns: --wide\n", n_left_out);
}
