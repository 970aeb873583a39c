/* test_svg_plot.c - plots as text: well-formed for any labels, points at the right places, labels
 * that do not overlap. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/compare/svg_plot.h"

/* Fails unless every tag is closed in order and every '&' and quote is escaped. */
static void assert_well_formed(const char *s)
{
    const char *open[16];
    size_t lengths[16], depth = 0;
    for (const char *p = strchr(s, '<'); p; p = strchr(p, '<')) {
        const char *end = strchr(p, '>');
        assert_non_null(end);
        assert_null(memchr(p + 1, '<', (size_t)(end - p - 1)));
        const char *name = p + 1 + (p[1] == '/');
        size_t n = strcspn(name, " />");
        if (p[1] == '/') {
            assert_true(depth > 0 && lengths[depth - 1] == n);
            assert_memory_equal(open[--depth], name, n);
        } else if (end[-1] != '/') {
            assert_true(depth < 16);
            open[depth] = name;
            lengths[depth++] = n;
        }
        p = end;
    }
    assert_int_equal(depth, 0);
    for (const char *p = strchr(s, '&'); p; p = strchr(p + 1, '&'))
        assert_true(strncmp(p, "&amp;", 5) == 0 || strncmp(p, "&lt;", 4) == 0 ||
                    strncmp(p, "&gt;", 4) == 0 || strncmp(p, "&quot;", 6) == 0);
}

static uint32_t count_of(const char *s, const char *what)
{
    uint32_t n = 0;
    for (const char *p = s; (p = strstr(p, what)); p++) n++;
    return n;
}

static const char *const series[] = {"full KV", "a<b"};

static cn_buf plot(const cn_svg_panel *panels, uint32_t n)
{
    cn_buf out = {0};
    const cn_svg_plot p = {"x & more", "\"y\"", series, 2, panels, n};
    assert_int_equal(cn_svg_plot_write(&out, &p), CN_OK);
    assert_well_formed(out.data);
    return out;
}

static void points_are_at_the_right_places(void **state)
{
    (void)state;
    const cn_svg_point points[] = {{"zero", 0, 0, 0, 0.25, 0}, {"<all>", 600, 1, 0.5, 1, 1}};
    const cn_svg_panel panel = {"ledger", points, 2};
    cn_buf out = plot(&panel, 1);
    assert_int_equal(count_of(out.data, "r=\"4\""), 2 + 2); /* the legend has one per series */
    /* The axes go from x 52 to 364 and from y 294 up to 34; x ends at 600. */
    assert_non_null(strstr(out.data, "cx=\"52.0\" cy=\"294.0\""));
    assert_non_null(strstr(out.data, "cx=\"364.0\" cy=\"34.0\""));
    assert_non_null(strstr(out.data, "x1=\"364.0\" y1=\"164.0\" x2=\"364.0\" y2=\"34.0\""));
    assert_non_null(strstr(out.data, "&lt;all&gt;"));
    cn_buf_free(&out);
}

static void an_empty_plot_is_a_document_too(void **state)
{
    (void)state;
    const cn_svg_point origin = {"o", 0, 0, 0, 0, 0};
    const cn_svg_panel panels[] = {{"empty", NULL, 0}, {"origin", &origin, 1}, {"", NULL, 0}};
    for (uint32_t n = 0; n <= 3; n++) {
        cn_buf out = plot(panels, n);
        assert_null(strstr(out.data, "nan"));
        cn_buf_free(&out);
    }
}

static void labels_do_not_overlap(void **state)
{
    (void)state;
    cn_svg_point points[20];
    for (uint32_t i = 0; i < 20; i++) points[i] = (cn_svg_point){"arm", 400, 0.9, 0.9, 0.9, 1};
    const cn_svg_panel panel = {"t", points, 20};
    cn_buf out = plot(&panel, 1);
    double last = -1000;
    uint32_t n = 0;
    for (const char *p = out.data; (p = strstr(p, "font-size=\"10\"")); p++, n++) {
        const char *y = p;
        while (strncmp(y, "y=\"", 3) != 0) y--;
        const double at = strtod(y + 3, NULL);
        assert_true(at - last >= 12);
        last = at;
    }
    assert_int_equal(n, 20);
    cn_buf_free(&out);
}

static void a_long_label_stays_inside_the_page(void **state)
{
    (void)state;
    /* The point is on the right edge of the axes, x 364 of 460: the label must end at its point. */
    const cn_svg_point points[] = {{"zip:384:window=48:no-global", 400, 0.5, 0.5, 0.5, 1}};
    const cn_svg_panel panel = {"t", points, 1};
    cn_buf out = plot(&panel, 1);
    const char *label = strstr(out.data, "font-size=\"10\"");
    assert_non_null(label);
    assert_memory_equal(strstr(label, "text-anchor"), "text-anchor=\"end\">zip:384", 25);
    assert_non_null(strstr(out.data, "x=\"357.0\""));
    cn_buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(points_are_at_the_right_places),
        cmocka_unit_test(an_empty_plot_is_a_document_too),
        cmocka_unit_test(labels_do_not_overlap),
        cmocka_unit_test(a_long_label_stays_inside_the_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
