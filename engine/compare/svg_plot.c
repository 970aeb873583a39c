/* svg_plot.c - see svg_plot.h. Lengths are in SVG user units, pixels at 100 %. */
#include "engine/compare/svg_plot.h"

#include <math.h>
#include <string.h>

enum {
    PANEL_WIDTH = 460,
    PANEL_HEIGHT = 340,
    LEFT = 52, /* margins of a panel around its axes */
    RIGHT = 96,
    TOP = 34,
    BOTTOM = 46,
    LEGEND_HEIGHT = 34,
    LABEL_HEIGHT = 12,
    LABEL_CHAR_WIDTH = 6,
    MAX_LABELS = 64 /* points of a panel that get a label */
};

static const char *const colours[CN_SVG_MAX_SERIES] = {"#1b6ca8", "#c0392b", "#2e8b57",
                                                       "#8e44ad", "#d08000", "#555555"};

/* The place of a panel's axes on the page, and the scale of x. */
typedef struct frame {
    double left, top, width, height; /* of the axes */
    double x_max;
} frame;

static double at_x(const frame *f, double x) { return f->left + x / f->x_max * f->width; }
static double at_y(const frame *f, double y) { return f->top + (1 - y) * f->height; }

static cn_status add_escaped(cn_buf *out, const char *text)
{
    for (; *text; text++) {
        const char *entity = *text == '&'   ? "&amp;"
                             : *text == '<' ? "&lt;"
                             : *text == '>' ? "&gt;"
                             : *text == '"' ? "&quot;"
                                            : NULL;
        if (entity)
            CN_TRY(cn_buf_add(out, entity, strlen(entity)));
        else
            CN_TRY(cn_buf_add(out, text, 1));
    }
    return CN_OK;
}

static cn_status add_text(cn_buf *out, double x, double y, const char *attributes, const char *text)
{
    CN_TRY(cn_buf_addf(out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes));
    CN_TRY(add_escaped(out, text));
    return cn_buf_addf(out, "</text>\n");
}

static cn_status add_line(cn_buf *out, double x1, double y1, double x2, double y2,
                          const char *colour)
{
    return cn_buf_addf(out,
                       "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n",
                       x1, y1, x2, y2, colour);
}

/* The smallest number that is 1, 2 or 5 times a power of ten and at least x. */
static double round_up_nicely(double x)
{
    const double power = pow(10, floor(log10(x)));
    const double steps[] = {1, 2, 5, 10};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (steps[i] * power >= x * (1 - 1e-9)) return steps[i] * power;
    return 10 * power;
}

static double tick_of(double x_max) { return round_up_nicely(x_max / 6); }

static double scale_of(const cn_svg_plot *p)
{
    double x_max = 0;
    for (uint32_t i = 0; i < p->n_panels; i++)
        for (uint32_t k = 0; k < p->panels[i].n_points; k++)
            x_max = fmax(x_max, p->panels[i].points[k].x);
    if (x_max <= 0) return 1;
    const double tick = tick_of(x_max);
    return ceil(x_max / tick) * tick;
}

static cn_status add_axes(cn_buf *out, const cn_svg_plot *p, const frame *f, const char *title)
{
    char text[32];
    const double right = f->left + f->width, bottom = f->top + f->height;
    for (int percent = 0; percent <= 100; percent += 20) {
        const double y = at_y(f, percent / 100.0);
        CN_TRY(add_line(out, f->left, y, right, y, percent ? "#e4e4e4" : "#333"));
        snprintf(text, sizeof text, "%d %%", percent);
        CN_TRY(add_text(out, f->left - 6, y + 4, "text-anchor=\"end\"", text));
    }
    const double tick = tick_of(f->x_max);
    for (int i = 0; i * tick <= f->x_max * (1 + 1e-9); i++) {
        const double x = at_x(f, i * tick);
        CN_TRY(add_line(out, x, bottom, x, bottom + 4, "#333"));
        snprintf(text, sizeof text, "%g", i * tick);
        CN_TRY(add_text(out, x, bottom + 16, "text-anchor=\"middle\"", text));
    }
    CN_TRY(add_line(out, f->left, f->top, f->left, bottom, "#333"));
    CN_TRY(add_text(out, f->left, f->top - 12, "font-weight=\"bold\"", title));
    CN_TRY(add_text(out, f->left + f->width / 2, bottom + 34, "text-anchor=\"middle\"",
                    p->x_title));
    return add_text(out, right, f->top - 12, "text-anchor=\"end\" fill=\"#666\"", p->y_title);
}

static cn_status add_point(cn_buf *out, const frame *f, const cn_svg_point *p)
{
    const char *colour = colours[p->series];
    const double x = at_x(f, p->x), y = at_y(f, p->y);
    CN_TRY(add_line(out, x, at_y(f, p->low), x, at_y(f, p->high), colour));
    CN_TRY(cn_buf_addf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"><title>", x, y,
                       colour));
    CN_TRY(add_escaped(out, p->label));
    return cn_buf_addf(out, ": %.1f %% (%.1f to %.1f) at %.0f</title></circle>\n", 100 * p->y,
                       100 * p->low, 100 * p->high, p->x);
}

/* True if a label has to end at its point, because there is no room to the right of the point. */
static bool ends_at_point(const frame *f, double x, const char *label)
{
    const double width = LABEL_CHAR_WIDTH * (double)strlen(label);
    return x + width > f->left + f->width + RIGHT && x - width > f->left - LEFT;
}

/* The places of a panel's labels, from the highest point to the lowest. */
typedef struct labels {
    uint32_t n;
    struct label {
        const cn_svg_point *point;
        double x, y;
        bool ends; /* the text ends at the point */
    } at[MAX_LABELS];
} labels;

static bool share_columns(const struct label *a, const struct label *b)
{
    return fabs(a->x - b->x) < RIGHT;
}

/* Places the labels beside their points, to the right if there is room. A label that would touch
 * another of about the same x moves below it. If that puts it outside the axes, it moves up and
 * pushes up the labels above it. */
static void place_labels(labels *l, const frame *f)
{
    for (uint32_t i = 0; i < l->n; i++) {
        struct label *a = &l->at[i];
        a->x = at_x(f, a->point->x);
        a->ends = ends_at_point(f, a->x + 7, a->point->label);
        a->x += a->ends ? -7 : 7;
        a->y = at_y(f, a->point->y) + 4;
        for (uint32_t k = 0; k < i; k++)
            if (share_columns(a, &l->at[k])) a->y = fmax(a->y, l->at[k].y + LABEL_HEIGHT);
    }
    for (uint32_t i = l->n; i-- > 0;) {
        struct label *a = &l->at[i];
        a->y = fmin(a->y, f->top + f->height);
        for (uint32_t k = i + 1; k < l->n; k++)
            if (share_columns(a, &l->at[k])) a->y = fmin(a->y, l->at[k].y - LABEL_HEIGHT);
    }
}

static cn_status add_labels(cn_buf *out, const frame *f, const cn_svg_panel *panel)
{
    labels l = {0};
    for (uint32_t k = 0; k < panel->n_points && l.n < MAX_LABELS; k++) {
        uint32_t i = l.n++;
        for (; i > 0 && l.at[i - 1].point->y < panel->points[k].y; i--) l.at[i] = l.at[i - 1];
        l.at[i].point = &panel->points[k];
    }
    place_labels(&l, f);
    for (uint32_t i = 0; i < l.n; i++) {
        const struct label *a = &l.at[i];
        char attributes[64];
        snprintf(attributes, sizeof attributes, "font-size=\"10\" fill=\"%s\"%s",
                 colours[a->point->series], a->ends ? " text-anchor=\"end\"" : "");
        CN_TRY(add_text(out, a->x, a->y, attributes, a->point->label));
    }
    return CN_OK;
}

static cn_status add_panel(cn_buf *out, const cn_svg_plot *p, uint32_t i, double x_max)
{
    const cn_svg_panel *panel = &p->panels[i];
    const frame f = {
        .left = (i % 2) * PANEL_WIDTH + LEFT,
        .top = (i / 2) * PANEL_HEIGHT + TOP,
        .width = PANEL_WIDTH - LEFT - RIGHT,
        .height = PANEL_HEIGHT - TOP - BOTTOM,
        .x_max = x_max,
    };
    CN_TRY(add_axes(out, p, &f, panel->title));
    for (uint32_t k = 0; k < panel->n_points; k++) {
        CN_ASSERT(panel->points[k].series < p->n_series);
        CN_TRY(add_point(out, &f, &panel->points[k]));
    }
    return add_labels(out, &f, panel);
}

static cn_status add_legend(cn_buf *out, const cn_svg_plot *p, int top)
{
    double x = LEFT;
    for (uint32_t i = 0; i < p->n_series; i++) {
        CN_TRY(cn_buf_addf(out, "<circle cx=\"%.1f\" cy=\"%d\" r=\"4\" fill=\"%s\"/>\n", x,
                           top + LEGEND_HEIGHT / 2 - 4, colours[i]));
        CN_TRY(add_text(out, x + 9, top + LEGEND_HEIGHT / 2, "", p->series[i]));
        x += 24 + 7.0 * (double)strlen(p->series[i]);
    }
    return CN_OK;
}

cn_status cn_svg_plot_write(cn_buf *out, const cn_svg_plot *p)
{
    CN_ASSERT(p->n_series <= CN_SVG_MAX_SERIES);
    const int columns = p->n_panels > 1 ? 2 : 1;
    const int rows = (int)cn_ceil_div(p->n_panels, (uint64_t)columns);
    const int width = columns * PANEL_WIDTH, height = rows * PANEL_HEIGHT + LEGEND_HEIGHT;
    CN_TRY(cn_buf_addf(out,
                       "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
                       "width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"11\">\n"
                       "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                       width, height, width, height));
    const double x_max = scale_of(p);
    for (uint32_t i = 0; i < p->n_panels; i++) CN_TRY(add_panel(out, p, i, x_max));
    CN_TRY(add_legend(out, p, rows * PANEL_HEIGHT));
    return cn_buf_addf(out, "</svg>\n");
}
