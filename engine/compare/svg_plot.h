/* svg_plot.h - a scatter plot with error bars as SVG text. Panels are two to a row and share one
 * scale of x. y goes from 0 to 1 and is shown in percent.
 *
 * Owner: the caller. Thread: any. Stage: reports. */
#ifndef CN_SVG_PLOT_H
#define CN_SVG_PLOT_H

#include "engine/base/base.h"

typedef struct cn_svg_point {
    const char *label;
    double x;            /* >= 0 */
    double y, low, high; /* 0 .. 1; the error bar goes from low to high */
    uint32_t series;     /* selects the colour */
} cn_svg_point;

typedef struct cn_svg_panel {
    const char *title;
    const cn_svg_point *points; /* [n_points] */
    uint32_t n_points;
} cn_svg_panel;

typedef struct cn_svg_plot {
    const char *x_title, *y_title;
    const char *const *series; /* [n_series] names for the legend, at most CN_SVG_MAX_SERIES */
    uint32_t n_series;
    const cn_svg_panel *panels; /* [n_panels] */
    uint32_t n_panels;
} cn_svg_plot;

enum { CN_SVG_MAX_SERIES = 6 };

/* Appends the complete document. */
cn_status cn_svg_plot_write(cn_buf *out, const cn_svg_plot *p);

#endif
