/* progress.c - see progress.h. */
#include "engine/offline/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#define BAR_INTERVAL_S 0.25
#define PLAIN_INTERVAL_S 10.0
#define MOST_SPREAD 1.1 /* of the engines' tokens, without a line about it */
#define RATE_MEMORY_S 10.0 /* the rate is smoothed over about this many seconds */
enum { PLAIN_WIDTH = 200, DEFAULT_WIDTH = 80, BAR_CELLS = 20, LINE_BYTES = 1024, PART_BYTES = 96 };

void cn_progress_begin(cn_progress *p, cn_opt_progress mode, FILE *f)
{
    const bool terminal = isatty(fileno(f));
    *p = (cn_progress){
        .f = f,
        .bar = mode == CN_OPT_PROGRESS_BAR || (mode == CN_OPT_PROGRESS_AUTO && terminal),
        .off = mode == CN_OPT_PROGRESS_NONE,
        .started_s = cn_now_s(),
    };
    p->shown_s = p->rate_s = p->started_s;
}

bool cn_progress_is_due(const cn_progress *p)
{
    return !p->off && cn_now_s() - p->shown_s >= (p->bar ? BAR_INTERVAL_S : PLAIN_INTERVAL_S);
}

/* Number of lines of the input: known at its end, else estimated from bytes; 0: unknown. */
static uint64_t requests_total(const cn_progress_figures *g)
{
    if (g->input_ended) return g->read;
    if (!g->input_bytes_total || !g->input_bytes) return 0;
    const double scale = (double)g->input_bytes_total / (double)g->input_bytes;
    const uint64_t total = (uint64_t)((double)g->read * scale + 0.5);
    return total > g->read ? total : g->read;
}

bool cn_progress_tokens_left(const cn_progress_figures *g, uint64_t *tokens)
{
    const uint64_t total = requests_total(g);
    if (g->tokens_total) {
        const uint64_t n = g->stats.generation_tokens;
        *tokens = g->tokens_total > n ? g->tokens_total - n : 0;
        return true;
    }
    if (total == 0 || g->answered_now == 0) return false;
    /* Short answers finish first, so the mean of the finished ones is too small. Adding the tokens
     * of those that still run (as for a censored exponential law) overestimates, and is exact when
     * all are finished. */
    const double mean = (double)g->stats.generation_tokens / (double)g->answered_now;
    const uint64_t left = total - g->done;
    *tokens = (uint64_t)((double)left * mean);
    if (g->most_tokens == 0) return true;
    const uint64_t most = left * g->most_tokens;
    const uint64_t to_come = most > g->running_tokens ? most - g->running_tokens : 0;
    if (*tokens > to_come) *tokens = to_come;
    return true;
}

static void update_rate(cn_progress *p, const cn_progress_figures *g)
{
    const double now = cn_now_s(), dt = now - p->rate_s;
    if (dt <= 0) return;
    const double rate = (double)(g->stats.generation_tokens - p->rate_tokens) / dt;
    const double weight = p->tokens_per_s > 0 ? dt / (dt + RATE_MEMORY_S) : 1;
    p->tokens_per_s += weight * (rate - p->tokens_per_s);
    p->rate_s = now;
    p->rate_tokens = g->stats.generation_tokens;
}

/* 950, 12.3k, 4.56M. */
static void format_count(char *text, size_t size, double n)
{
    if (n < 1000)
        snprintf(text, size, "%.0f", n);
    else if (n < 1e6)
        snprintf(text, size, "%.1fk", n / 1e3);
    else
        snprintf(text, size, "%.2fM", n / 1e6);
}

static void format_time(char *text, size_t size, double seconds)
{
    const uint64_t s = (uint64_t)(seconds + 0.5);
    if (s < 3600)
        snprintf(text, size, "%llu:%02llu", (unsigned long long)(s / 60),
                 (unsigned long long)(s % 60));
    else
        snprintf(text, size, "%llu:%02llu:%02llu", (unsigned long long)(s / 3600),
                 (unsigned long long)(s / 60 % 60), (unsigned long long)(s % 60));
}

/* ---- the parts of the line ---- */

static void format_bar(char *text, uint64_t done, uint64_t total)
{
    const uint64_t full = total ? done * BAR_CELLS / total : 0;
    text[0] = '[';
    for (uint64_t i = 0; i < BAR_CELLS; i++) text[1 + i] = i < full ? '#' : '.';
    memcpy(text + 1 + BAR_CELLS, "] ", 3);
}

static void format_requests(const cn_progress_figures *g, char *text)
{
    const uint64_t total = requests_total(g);
    char of[40] = "", errors[40] = "";
    if (total)
        snprintf(of, sizeof of, " of %s%llu", g->input_ended ? "" : "about ",
                 (unsigned long long)total);
    if (g->errors) snprintf(errors, sizeof errors, " (%llu errors)", (unsigned long long)g->errors);
    const int n = g->doing ? snprintf(text, PART_BYTES, "%.32s: ", g->doing) : 0;
    snprintf(text + n, PART_BYTES - (size_t)n, "%llu%s requests%s", (unsigned long long)g->done, of,
             errors);
}

static void format_tokens(const cn_progress_figures *g, char *text)
{
    uint64_t left;
    char now[32], all[32] = "";
    const uint64_t n = g->tokens_earlier + g->stats.generation_tokens;
    format_count(now, sizeof now, (double)n);
    if (!cn_progress_tokens_left(g, &left)) {
        snprintf(text, PART_BYTES, ", %s output tokens", now);
        return;
    }
    format_count(all, sizeof all, (double)(n + left));
    snprintf(text, PART_BYTES, ", %s of %s%s tokens", now, g->tokens_total ? "" : "about ", all);
}

static void format_left(const cn_progress *p, const cn_progress_figures *g, char *text)
{
    uint64_t tokens;
    char time[32];
    snprintf(text, PART_BYTES, ", time left unknown");
    if (!cn_progress_tokens_left(g, &tokens) || p->tokens_per_s <= 0) return;
    format_time(time, sizeof time, (double)tokens / p->tokens_per_s);
    snprintf(text, PART_BYTES, ", %s left", time);
}

static void format_load(const cn_stats *s, char *text)
{
    const double kv = s->blocks_total ? 100.0 * s->blocks_used / s->blocks_total : 0;
    snprintf(text, PART_BYTES, ", %u running, %u waiting, KV %.0f%% full", s->running, s->waiting,
             kv);
}

void cn_progress_format(const cn_progress *p, const cn_progress_figures *g, char *text,
                        size_t size, size_t width)
{
    enum { BAR, REQUESTS, TOKENS, RATE, LEFT, LOAD, N_PARTS };
    static const int by_importance[] = {REQUESTS, LEFT, TOKENS, RATE, BAR, LOAD};
    char part[N_PARTS][PART_BYTES] = {{0}}, rate[32];
    if (p->bar) format_bar(part[BAR], g->done, requests_total(g));
    format_requests(g, part[REQUESTS]);
    format_tokens(g, part[TOKENS]);
    format_count(rate, sizeof rate, p->tokens_per_s);
    snprintf(part[RATE], PART_BYTES, ", %s output tokens/s", rate);
    format_left(p, g, part[LEFT]);
    format_load(&g->stats, part[LOAD]);
    size_t used = 0;
    for (int i = 0; i < N_PARTS; i++) {
        const size_t n = strlen(part[by_importance[i]]);
        const bool fits = used + n <= width;
        if (fits || i == 0)
            used += n;
        else
            part[by_importance[i]][0] = '\0';
    }
    char line[LINE_BYTES] = "";
    for (int i = 0; i < N_PARTS; i++)
        snprintf(line + strlen(line), sizeof line - strlen(line), "%s", part[i]);
    snprintf(text, size, "%.*s", (int)width, line);
}

/* ---- drawing ---- */

static size_t terminal_width(FILE *f)
{
    struct winsize w;
    if (ioctl(fileno(f), TIOCGWINSZ, &w) != 0 || w.ws_col == 0) return DEFAULT_WIDTH;
    return w.ws_col;
}

/* A second line, if engines have done more and less than others. */
static void show_spread(cn_progress *p, const cn_progress_figures *g)
{
    char least[32], most[32];
    if ((double)g->most.tokens <= MOST_SPREAD * (double)g->least.tokens) return;
    format_count(least, sizeof least, (double)g->least.tokens);
    format_count(most, sizeof most, (double)g->most.tokens);
    fprintf(p->f, "  engines: %s (engine %u) to %s (engine %u) output tokens\n", least,
            g->least.engine, most, g->most.engine);
}

void cn_progress_show(cn_progress *p, const cn_progress_figures *g)
{
    if (p->off) return;
    char text[LINE_BYTES];
    update_rate(p, g);
    if (p->bar) {
        cn_progress_format(p, g, text, sizeof text, terminal_width(p->f) - 1);
        fprintf(p->f, "\r\033[K%s", text);
        cn_log_set_bar(true);
    } else {
        cn_progress_format(p, g, text, sizeof text, PLAIN_WIDTH);
        fprintf(p->f, "%s\n", text);
        show_spread(p, g);
    }
    fflush(p->f);
    p->shown_s = cn_now_s();
}

void cn_progress_end(cn_progress *p)
{
    if (cn_log_set_bar(false)) fprintf(p->f, "\r\033[K");
    fflush(p->f);
}
