/* tidy.c - the style check of `make tidy`. Prints "file:line: what" for each fault in the C files,
 * CUDA files and documents of the tree. Fails when there is a fault.
 *
 *   size      function 70 lines, file 800 lines, line 100 columns (characters, not bytes). A CUDA
 *             kernel may be longer when the comment above it says why: "Long: <reason>".
 *   layers    a folder may include only what the table `layers` lists; every folder may include
 *             the leaves (is_leaf()). No header includes itself through others. No circle of files,
 *             a header with its source as one, leads from a folder through another and back.
 *   names     no static function of the product has the name of one in another file of it.
 *   files     names are unique; the first line is a comment "name - purpose"; a rule of the
 *             Makefile builds every C file; a file includes every header, which has #pragma once.
 *   citations every file that a comment or document cites exists, and every section of the rules
 *             (docs/DESIGN.md, docs/SELECTION.md, docs/HOMES.md).
 *   text      no tabs, no trailing blanks, no marks of unfinished work; getenv only in options.c
 *             and tests/fake_cuda; exit() only in main.c, in the handler of stop signals and in
 *             tests, benchmarks and examples; no error texts of libraries outside tests and
 *             benchmarks.
 *
 * The check relies on the house style: a function body opens and closes with a brace alone in
 * column one. */
#include <dirent.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAX_FUNCTION_LINES = 70,
    MAX_FILE_LINES = 800,
    MAX_COLUMNS = 100,
    MAX_FILES = 1024,
    MAX_HEADERS = 64, /* of a file */
    MAX_FUNCTIONS = 16384,
    MAX_PATH = 512
};

typedef struct source {
    char path[MAX_PATH]; /* from the root: "engine/base/base.c" */
    const char *name;    /* its last part */
    char *text;          /* the file, with NUL for line ends */
    char *code;          /* the same, with comments and literals blanked */
    char **line;         /* [n_lines] into text */
    char **code_line;    /* [n_lines] into code */
    size_t n_lines;
    bool included; /* some other file includes it */
    enum { NEW, ON_PATH, DONE } visit; /* used by check_circles */
    struct source *twin; /* a.h of a.c, and the reverse; NULL: none */
    struct source *headers[MAX_HEADERS]; /* that it includes */
    size_t n_headers;
    bool seen; /* used by leads_to */
} source;

static source files[MAX_FILES];
static size_t n_files, n_faults;

static void fault(const source *f, size_t line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printf("%s:%zu: ", f->path, line);
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    n_faults++;
}

static void *must(void *p)
{
    if (p) return p;
    perror("tidy");
    exit(2);
}

static bool starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static bool ends(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}

static bool is_header(const source *f) { return ends(f->name, ".h") || ends(f->name, ".cuh"); }
static bool is_cuda(const source *f) { return ends(f->name, ".cu") || ends(f->name, ".cuh"); }

/* ---- reading ---- */

/* Blanks comments and the contents of literals and keeps line ends, so that checks of code see no
 * text. */
static void blank_text(char *p)
{
    while (*p) {
        if (p[0] == '/' && p[1] == '*') {
            for (; *p && !(p[0] == '*' && p[1] == '/'); p++)
                if (*p != '\n') *p = ' ';
            if (*p) p[0] = p[1] = ' ';
        } else if (p[0] == '/' && p[1] == '/') {
            while (*p && *p != '\n') *p++ = ' ';
        } else if (*p == '"' || *p == '\'') {
            char quote = *p++;
            for (; *p && *p != quote && *p != '\n'; p++) {
                if (*p == '\\' && p[1]) *p++ = ' ';
                *p = ' ';
            }
            if (*p) p++;
        } else {
            p++;
        }
    }
}

static size_t split_lines(char *text, char ***lines)
{
    size_t n = 0;
    for (const char *p = text; *p; p++) n += *p == '\n';
    *lines = must(calloc(n + 1, sizeof **lines));
    n = 0;
    for (char *p = text; *p; n++) {
        (*lines)[n] = p;
        p += strcspn(p, "\n");
        if (*p) *p++ = '\0';
    }
    return n;
}

static void read_file(const char *path)
{
    if (n_files == MAX_FILES) {
        fprintf(stderr, "tidy: more than %d files\n", MAX_FILES);
        exit(2);
    }
    source *f = &files[n_files++];
    snprintf(f->path, sizeof f->path, "%s", path);
    char *slash = strrchr(f->path, '/');
    f->name = slash ? slash + 1 : f->path;
    FILE *in = must(fopen(path, "rb"));
    struct stat st;
    if (fstat(fileno(in), &st) != 0) must(NULL);
    f->text = must(calloc((size_t)st.st_size + 1, 1));
    if (fread(f->text, 1, (size_t)st.st_size, in) != (size_t)st.st_size) must(NULL);
    fclose(in);
    f->code = must(strdup(f->text));
    if (st.st_size && f->text[st.st_size - 1] != '\n') fault(f, 1, "no line end at the end");
    blank_text(f->code);
    f->n_lines = split_lines(f->text, &f->line);
    split_lines(f->code, &f->code_line);
}

static bool is_source(const char *name)
{
    return ends(name, ".c") || ends(name, ".h") || ends(name, ".cu") || ends(name, ".cuh");
}

static bool is_document(const char *name) { return ends(name, ".md"); }

static void read_tree(const char *dir)
{
    struct dirent **entries;
    int n = scandir(dir, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char path[MAX_PATH];
        const char *name = entries[i]->d_name;
        snprintf(path, sizeof path, "%s/%s", dir, name);
        struct stat st;
        if (name[0] != '.' && stat(path, &st) == 0) {
            if (S_ISDIR(st.st_mode))
                read_tree(path);
            else if (is_source(name) || is_document(name))
                read_file(path);
        }
        free(entries[i]);
    }
    if (n >= 0) free(entries);
}

/* ---- size ---- */

static size_t columns(const char *s)
{
    size_t n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80; /* not a UTF-8 continuation */
    return n;
}

/* Returns the first line of the declaration whose body opens at `open`. */
static size_t signature_start(const source *f, size_t open)
{
    size_t i = open;
    while (i > 0) {
        const char *above = f->code_line[i - 1];
        if (!*above || above[strspn(above, " ")] == '\0' || *above == '}' || *above == '#') break;
        if (ends(above, ";")) break;
        i--;
    }
    return i;
}

/* True when the comment directly above line i contains "Long:". */
static bool says_why_long(const source *f, size_t i)
{
    while (i > 0 && *f->line[i - 1] && !*(f->code_line[i - 1] + strspn(f->code_line[i - 1], " "))) {
        i--;
        if (strstr(f->line[i], "Long:")) return true;
    }
    return false;
}

static void check_function(const source *f, size_t open, size_t close)
{
    size_t start = signature_start(f, open), n = close - start + 1;
    if (n <= MAX_FUNCTION_LINES) return;
    if (is_cuda(f) && says_why_long(f, start)) return;
    fault(f, start + 1, "function of %zu lines, limit %d", n, MAX_FUNCTION_LINES);
}

static void check_size(const source *f)
{
    if (f->n_lines > MAX_FILE_LINES)
        fault(f, f->n_lines, "file of %zu lines, limit %d", f->n_lines, MAX_FILE_LINES);
    size_t open = 0;
    bool inside = false;
    for (size_t i = 0; i < f->n_lines; i++) {
        size_t n = columns(f->line[i]);
        if (n > MAX_COLUMNS) fault(f, i + 1, "line of %zu columns, limit %d", n, MAX_COLUMNS);
        if (strcmp(f->code_line[i], "{") == 0) {
            open = i;
            inside = true;
        } else if (*f->code_line[i] == '}' && inside) {
            check_function(f, open, i);
            inside = false;
        }
    }
}

/* ---- layers ---- */

static bool is_leaf(const char *path)
{
    bool has_ops = starts(path, "engine/") && ends(path, "ops.h") && !strchr(path + 7, '/');
    return has_ops || starts(path, "engine/base/") || !strcmp(path, "engine/cinch.h") ||
           !strcmp(path, "paged/kv_layout.h") || !strcmp(path, "paged/kv_fp8.h") ||
           !strcmp(path, "paged/planes.h");
}

/* The folders and single headers that a file of `folder` may include, in addition to its own folder
 * and the leaves. The longest matching folder counts. A folder in a list does not include the
 * folders inside it. docs/ARCHITECTURE.md draws the main directions. */
static const struct {
    const char *folder;
    const char *may[14];
} layers[] = {
    {"paged/", {NULL}},
    {"compress/", {"paged/"}},
    {"scheduler/", {"paged/", "compress/away.h", "compress/policy.h", "compress/selector.h"}},
    {"engine/base/", {NULL}},
    {"engine/options/", {"compress/away.h", "compress/policy.h", "compress/selector.h"}},
    {"engine/text/",
     {"engine/options/", "engine/text/jinja/jinja.h", "engine/text/jinja/jinja_pystring.h"}},
    {"engine/text/jinja/", {NULL}},
    {"engine/checkpoint/", {"engine/options/", "paged/planes.h"}},
    {"engine/cpu/",
     {"compress/", "engine/sample_math.h", "engine/select/select_math.h",
      "engine/select/selected_stages.h"}},
    {"engine/grammar/", {NULL}},
    {"engine/start/",
     {"engine/options/", "engine/checkpoint/model_config.h", "compress/away.h",
      "compress/policy.h", "compress/selector.h"}},
    {"engine/select/",
     {"engine/sample_math.h", "engine/options/", "engine/checkpoint/", "engine/start/",
      "scheduler/", "paged/", "compress/"}},
    {"engine/select/select_probe.c", {"engine/select/", "engine/cpu/cpu_rows.h"}},
    {"engine/select/calibrate.c",
     {"engine/select/", "engine/options/", "engine/checkpoint/", "engine/model/",
      "engine/start/"}},
    {"engine/home/",
     {"engine/options/", "engine/checkpoint/", "engine/model/pass.h", "engine/select/",
      "engine/start/", "scheduler/", "paged/", "compress/"}},
    {"engine/model/", {"engine/checkpoint/", "engine/select/", "engine/start/"}},
    {"engine/",
     {"engine/options/", "engine/text/", "engine/checkpoint/", "engine/grammar/", "engine/start/",
      "engine/model/", "engine/select/", "engine/home/", "engine/cpu/cpu_pool.h", "scheduler/",
      "paged/", "compress/"}},
    {"engine/lanes/",
     {"engine/", "engine/options/", "engine/start/", "engine/cpu/cpu_pool.h", "compress/away.h"}},
    {"engine/api/",
     {"engine/options/", "engine/text/call_marks.h", "compress/policy.h", "compress/selector.h"}},
    {"engine/offline/",
     {"engine/", "engine/lanes/", "engine/options/", "engine/text/", "engine/api/", "engine/start/",
      "engine/checkpoint/file_sum.h", "engine/checkpoint/retrieval_file.h",
      "engine/checkpoint/select_file.h", "engine/cpu/cpu_pool.h", "compress/away.h",
      "compress/selector.h"}},
    {"engine/compare/",
     {"engine/", "engine/options/", "engine/text/", "engine/offline/", "engine/cmd/command.h",
      "compress/away.h", "compress/policy.h", "compress/selector.h"}},
    {"engine/serve/",
     {"engine/", "engine/options/", "engine/serve/http/", "engine/serve/calls/",
      "engine/serve/routes/"}},
    {"engine/serve/http/", {"engine/", "engine/options/", "engine/api/", "engine/serve/calls/"}},
    {"engine/serve/calls/",
     {"engine/", "engine/lanes/", "engine/options/", "engine/text/", "engine/api/",
      "engine/offline/"}},
    {"engine/serve/spool/",
     {"engine/options/", "engine/api/", "engine/offline/", "engine/serve/calls/"}},
    {"engine/serve/routes/",
     {"engine/", "engine/lanes/stat_rows.h", "engine/options/", "engine/text/", "engine/api/",
      "engine/offline/", "engine/serve/", "engine/serve/http/", "engine/serve/calls/",
      "engine/serve/spool/"}},
    {"engine/bench/",
     {"engine/", "engine/lanes/", "engine/options/", "engine/text/", "engine/checkpoint/",
      "engine/offline/", "engine/start/", "engine/home/home.h", "engine/cmd/command.h",
      "engine/cmd/stop_signals.h", "engine/compare/compare_arms.h",
      "engine/serve/http/http_parse.h", "compress/policy.h", "compress/selector.h"}},
    {"engine/cmd/",
     {"engine/", "engine/options/", "engine/text/", "engine/checkpoint/", "engine/start/",
      "engine/home/", "engine/select/", "engine/lanes/", "engine/offline/", "engine/serve/",
      "compress/policy.h", "compress/selector.h"}},
    {"cuda/",
     {"cuda/experts/experts.h", "cuda/gemm/gemm.h", "engine/checkpoint/dummy_weight.h",
      "engine/select/selected_stages.h"}},
    {"cuda/attn/", {"cuda/"}}, {"cuda/gemm/", {"cuda/"}},
    {"cuda/experts/", {"cuda/", "cuda/attn/attn_common.cuh"}},
    {"cuda/latent/", {"cuda/", "cuda/attn/"}},
    {"cuda/compress/", {"cuda/", "cuda/attn/", "cuda/latent/heads_gemm.cuh", "compress/"}},
    {"cuda/sample/", {"cuda/", "engine/sample_math.h"}},
    {"cuda/select/",
     {"cuda/", "cuda/attn/", "compress/", "engine/sample_math.h", "engine/select/select_math.h"}},
    {"cuda/home/", {"cuda/", "cuda/select/select.cuh"}},
    {"tests/", {"*"}},
    {"bench/", {"*"}},
    {"examples/", {"cinch.h"}},
};

/* True when `header` equals the entry or is directly in the entry's folder. */
static bool matches(const char *entry, const char *header)
{
    if (!strcmp(entry, "*") || !strcmp(entry, header)) return true;
    return ends(entry, "/") && starts(header, entry) && !strchr(header + strlen(entry), '/');
}

static bool may_include(const source *f, const char *header)
{
    size_t best = SIZE_MAX, best_len = 0;
    if (is_leaf(f->path)) return is_leaf(header);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        const size_t n = strlen(layers[i].folder);
        if (starts(f->path, layers[i].folder) && n > best_len) best = i, best_len = n;
    }
    if (best == SIZE_MAX) return false;
    if (matches(layers[best].folder, header)) return true;
    for (const char *const *m = layers[best].may; *m; m++)
        if (matches(*m, header)) return true;
    return is_leaf(header) && !starts(f->path, "examples/");
}

/* Gets the header that line i includes by a name in quotes; false when there is none. */
static bool includes(const source *f, size_t i, char header[MAX_PATH])
{
    return sscanf(f->line[i], " # include \"%511[^\"]\"", header) == 1;
}

static source *find_source(const char *path)
{
    for (size_t i = 0; i < n_files; i++)
        if (strcmp(files[i].path, path) == 0) return &files[i];
    return NULL;
}

static void check_includes(const source *f)
{
    bool once = !is_header(f);
    for (size_t i = 0; i < f->n_lines; i++) {
        char header[MAX_PATH];
        once |= strcmp(f->line[i], "#pragma once") == 0;
        if (!includes(f, i, header)) continue;
        source *h = find_source(header);
        if (h) h->included = true;
        if (ends(header, ".c"))
            fault(f, i + 1, "includes a C file, %s", header);
        else if (!may_include(f, header))
            fault(f, i + 1, "may not include %s", header);
    }
    if (!once) fault(f, 1, "has no \"#pragma once\"");
}

/* Follows includes from f. A header that is found again on the way down closes a circle. */
static void check_circles(source *f)
{
    if (f->visit == DONE) return;
    f->visit = ON_PATH;
    for (size_t i = 0; i < f->n_lines; i++) {
        char header[MAX_PATH];
        source *h = includes(f, i, header) ? find_source(header) : NULL;
        if (h && h->visit == ON_PATH) fault(f, i + 1, "%s also includes this file", header);
        if (h && h->visit == NEW) check_circles(h);
    }
    f->visit = DONE;
}

/* Length of a path without its ending. */
static size_t stem_length(const source *f) { return (size_t)(strrchr(f->path, '.') - f->path); }

/* Finds the twin of each file and the headers that it includes. */
static void link_files(void)
{
    for (size_t i = 0; i < n_files; i++) {
        source *f = &files[i];
        const size_t n = stem_length(f);
        for (size_t k = 0; k < n_files && !is_document(f->name); k++)
            if (k != i && stem_length(&files[k]) == n && !strncmp(files[k].path, f->path, n) &&
                !is_document(files[k].name))
                f->twin = &files[k];
        for (size_t k = 0; k < f->n_lines; k++) {
            char header[MAX_PATH];
            source *h = includes(f, k, header) ? find_source(header) : NULL;
            if (!h) continue;
            if (f->n_headers < MAX_HEADERS)
                f->headers[f->n_headers++] = h;
            else
                fault(f, k + 1, "more than %d includes", MAX_HEADERS);
        }
    }
}

/* Whether includes lead from a file, or from its twin, to another file or to its twin. */
static bool leads_to(source *from, const source *to)
{
    if (from == to || from == to->twin) return true;
    if (from->seen) return false;
    from->seen = true;
    for (size_t i = 0; i < from->n_headers; i++)
        if (leads_to(from->headers[i], to)) return true;
    return from->twin && leads_to(from->twin, to);
}

static bool same_folder(const source *a, const source *b)
{
    const size_t n = (size_t)(a->name - a->path);
    return n == (size_t)(b->name - b->path) && !strncmp(a->path, b->path, n);
}

static void check_folder_circles(const source *f)
{
    for (size_t i = 0; i < f->n_headers; i++) {
        if (same_folder(f, f->headers[i])) continue;
        for (size_t k = 0; k < n_files; k++) files[k].seen = false;
        if (leads_to(f->headers[i], f))
            fault(f, 1, "%s, which it includes, needs this file: a circle through two folders",
                  f->headers[i]->path);
    }
}

/* ---- files ---- */

/* The places where the Makefile finds C files: a folder and the start of a name. */
static bool is_built(const source *f)
{
    static const char *const places[] = {
        "scheduler/",  "paged/",      "compress/",  "bench/",       "examples/",
        "tests/lib/",  "tests/test_", "tests/fuzz_", "tests/sim_",  "tests/sim/",
        "tests/tidy.c", "tests/diff_dumps.c", "tests/cinch_true_query.c", "tests/print_docs.c",
        "tests/fake_cuda/", "tests/gpu_fault.c",
    };
    /* engine/ may have folders two levels deep, cuda/ one level. */
    size_t depth = 0;
    for (const char *p = f->path; *p; p++) depth += *p == '/';
    if (starts(f->path, "engine/")) return depth <= 3;
    if (starts(f->path, "cuda/")) return depth <= 2;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (starts(f->path, places[i]) && !strchr(f->path + strlen(places[i]), '/')) return true;
    return false;
}

static void check_first_line(const source *f)
{
    const char *line = f->n_lines ? f->line[0] : "";
    char with_name[MAX_PATH], with_path[MAX_PATH + 8];
    snprintf(with_name, sizeof with_name, "/* %.*s - ", MAX_PATH - 16, f->name);
    snprintf(with_path, sizeof with_path, "/* %s - ", f->path);
    if (!starts(line, with_name) && !starts(line, with_path))
        fault(f, 1, "the first line is not \"%spurpose\"", with_name);
}

static void check_files(void)
{
    for (size_t i = 0; i < n_files; i++) {
        const source *f = &files[i];
        if (is_document(f->name)) continue;
        check_first_line(f);
        if (!is_header(f) && !is_built(f)) fault(f, 1, "no rule of the Makefile builds this file");
        if (is_header(f) && !f->included && strcmp(f->path, "engine/cinch.h") != 0)
            fault(f, 1, "no file includes this header");
        for (size_t j = 0; j < i; j++)
            if (strcmp(files[j].name, f->name) == 0 && !is_document(f->name))
                fault(f, 1, "%s has the same file name", files[j].path);
    }
}

/* ---- text ---- */

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static bool has_word(const char *line, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = line; (p = strstr(p, word)); p += n)
        if ((p == line || !is_word(p[-1])) && !is_word(p[n])) return true;
    return false;
}

static bool calls(const char *line, const char *function)
{
    size_t n = strlen(function);
    for (const char *p = line; (p = strstr(p, function)); p += n)
        if ((p == line || !is_word(p[-1])) && p[n + strspn(p + n, " ")] == '(') return true;
    return false;
}

static bool may_exit(const source *f)
{
    return strcmp(f->path, "engine/cmd/main.c") == 0 ||
           strcmp(f->path, "engine/cmd/stop_signals.c") == 0 || starts(f->path, "tests/") ||
           starts(f->path, "bench/") || starts(f->path, "examples/");
}

/* Error texts of libraries are for programmers. Those of cinch name the thing and the way out. */
static void check_library_texts(const source *f, size_t line)
{
    static const char *const functions[] = {
        "pcre2_get_error_message",       "cudaGetErrorString", "cublasLtGetStatusString",
        "evutil_socket_error_to_string", "cublasGetStatusString", "cudaGetErrorName",
    };
    if (starts(f->path, "tests/") || starts(f->path, "bench/")) return;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (calls(f->code_line[line], functions[i]))
            fault(f, line + 1, "%s: an error text of a library: write a sentence instead",
                  functions[i]);
}

static void check_text(const source *f)
{
    /* Each mark is written in two pieces, so that this file has none. */
    static const char *const marks[] = {"TO"
                                        "DO",
                                        "FIX"
                                        "ME",
                                        "X"
                                        "XX",
                                        "HA"
                                        "CK"};
    const bool may_getenv = strcmp(f->path, "engine/options/options.c") == 0 ||
                            starts(f->path, "tests/fake_cuda/") ||
                            strcmp(f->path, "tests/gpu_fault.c") == 0;
    for (size_t i = 0; i < f->n_lines; i++) {
        const char *line = f->line[i], *code = f->code_line[i];
        size_t n = strlen(line);
        if (strchr(line, '\t')) fault(f, i + 1, "tab");
        if (n && (line[n - 1] == ' ' || line[n - 1] == '\r')) fault(f, i + 1, "trailing blank");
        for (size_t m = 0; m < sizeof marks / sizeof *marks; m++)
            if (has_word(line, marks[m])) fault(f, i + 1, "mark of unfinished work");
        if (!may_getenv && (calls(code, "getenv") || calls(code, "secure_getenv")))
            fault(f, i + 1, "getenv is allowed only in engine/options/options.c");
        if (!may_exit(f) && (calls(code, "exit") || calls(code, "_exit")))
            fault(f, i + 1, "exit below main: return a status");
        check_library_texts(f, i);
    }
}

/* ---- names of static functions ---- */

typedef struct function {
    const source *file;
    size_t line;
    const char *name;
    int len;
} function;

static function functions[MAX_FUNCTIONS];
static size_t n_functions;

/* Adds the function whose static definition is on a line, or begins on the line before. */
static void add_function(const source *f, size_t i)
{
    const char *line = f->code_line[i], *open = strchr(line, '('), *name = open;
    const char *before = i > 0 ? f->code_line[i - 1] : "";
    const bool follows = has_word(before, "static") && !strpbrk(before, ";({");
    if (!is_word(*line) || !open || (!follows && !has_word(line, "static"))) return;
    if (line[strlen(line) - 1] == ';' || memchr(line, '=', (size_t)(open - line))) return;
    while (name > line && is_word(name[-1])) name--;
    if (name == open || starts(name, "__")) return;
    if (n_functions == MAX_FUNCTIONS)
        fault(f, i + 1, "more static functions than %d", MAX_FUNCTIONS);
    else
        functions[n_functions++] = (function){f, i + 1, name, (int)(open - name)};
}

static int by_function(const void *a, const void *b)
{
    const function *x = a, *y = b;
    const int order = strncmp(x->name, y->name, (size_t)(x->len < y->len ? x->len : y->len));
    return order ? order : x->len - y->len;
}

static bool is_product(const source *f)
{
    return !is_document(f->name) && !starts(f->path, "tests/") && !starts(f->path, "bench/") &&
           !starts(f->path, "examples/");
}

static void check_functions(void)
{
    for (size_t i = 0; i < n_files; i++)
        for (size_t k = 0; is_product(&files[i]) && k < files[i].n_lines; k++)
            add_function(&files[i], k);
    qsort(functions, n_functions, sizeof *functions, by_function);
    for (size_t i = 1; i < n_functions; i++) {
        const function *x = &functions[i - 1], *y = &functions[i];
        if (by_function(x, y) == 0 && x->file != y->file)
            fault(y->file, y->line, "static function %.*s: %s has one of this name", y->len,
                  y->name, x->file->path);
    }
}

/* ---- citations ---- */

enum { MAX_SECTIONS = 32 };
/* The documents whose sections comments cite: their sections and the items of each. */
typedef struct rules {
    const char *name, *path;
    bool has_section[MAX_SECTIONS];
    size_t n_items[MAX_SECTIONS];
} rules;
static rules all_rules[] = {
    {.name = "DESIGN.md", .path = "docs/DESIGN.md"},
    {.name = "SELECTION.md", .path = "docs/SELECTION.md"},
    {.name = "HOMES.md", .path = "docs/HOMES.md"},
};
enum { N_RULES = sizeof all_rules / sizeof *all_rules };

/* "## 3. Title" starts a section, and "4. Text" in column one an item. */
static void read_sections(rules *r)
{
    const source *f = find_source(r->path);
    unsigned section = 0, n;
    for (size_t i = 0; f && i < f->n_lines; i++) {
        if (sscanf(f->line[i], "## %u. ", &n) == 1) {
            section = n;
            if (section < MAX_SECTIONS) r->has_section[section] = true;
        } else if (sscanf(f->line[i], "%u. ", &n) == 1 && section < MAX_SECTIONS) {
            r->n_items[section] = n;
        }
    }
}

/* The rules whose name `text` begins with, or NULL. */
static const rules *rules_named(const char *text)
{
    for (size_t i = 0; i < N_RULES; i++)
        if (starts(text, all_rules[i].name)) return &all_rules[i];
    return NULL;
}

/* The rules that `f` is, or NULL. */
static const rules *rules_of(const source *f)
{
    for (size_t i = 0; i < N_RULES; i++)
        if (strcmp(f->path, all_rules[i].path) == 0) return &all_rules[i];
    return NULL;
}

/* Checks "DESIGN.md §2.3" and the sections that follow it: ", §4", " and §5.1". In a document of
 * rules, a section without a name is its own. */
static void check_sections(const source *f, size_t line)
{
    static const char sign[] = "\u00a7"; /* the section sign */
    const rules *own = rules_of(f), *cited = own;
    for (const char *p = f->line[line]; *p;) {
        const rules *named = rules_named(p);
        if (named) {
            cited = named;
            p += strlen(named->name);
        } else if (cited && starts(p, sign)) {
            char *end;
            const unsigned long section = strtoul(p + strlen(sign), &end, 10);
            const bool has_item = *end == '.' && end[1] >= '0' && end[1] <= '9';
            const unsigned long item = has_item ? strtoul(end + 1, &end, 10) : 0;
            if (section >= MAX_SECTIONS || !cited->has_section[section] ||
                item > cited->n_items[section])
                fault(f, line + 1, "%s has no section %.*s", cited->path, (int)(end - p), p);
            p = end;
        } else {
            cited = own;
            p++;
            continue;
        }
        p += strspn(p, " ,)");
        if (starts(p, "and ")) p += strlen("and ");
    }
}

static bool is_path_char(char c)
{
    return is_word(c) || c == '/' || c == '.' || c == '-';
}

/* True for a path that starts with a top-level folder of the tree. */
static bool is_rooted(const char *path)
{
    static const char *const roots[] = {"engine/", "scheduler/", "paged/",    "compress/", "cuda/",
                                        "tests/",  "bench/",     "examples/", "docs/",     ".ci/"};
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++)
        if (starts(path, roots[i])) return true;
    return false;
}

/* A path from the root must exist. A C file, CUDA file or document that is cited by name only must
 * exist too. */
static void check_path(const source *f, size_t line, const char *path)
{
    struct stat st;
    while (starts(path, "../")) path += strlen("../");
    if (is_rooted(path)) {
        if (stat(path, &st) != 0) fault(f, line + 1, "cites %s, which does not exist", path);
        return;
    }
    if ((!is_source(path) && !is_document(path)) || strchr(path, '/') || path[0] == '.') return;
    for (size_t i = 0; i < n_files; i++)
        if (strcmp(files[i].name, path) == 0) return;
    fault(f, line + 1, "cites %s, which does not exist", path);
}

/* Checks the paths in a line of a comment or document. Patterns (http_*.c), placeholders (NAME) and
 * included headers are not citations. */
static void check_paths(const source *f, size_t line)
{
    const char *text = f->line[line];
    for (const char *p = text; *p;) {
        size_t n = 0;
        while (is_path_char(p[n])) n++;
        if (n == 0) {
            p++;
            continue;
        }
        char path[MAX_PATH];
        const bool pattern = p[n] == '*' || p[n] == '{' || p[n] == '<' || p[n] == '$' ||
                             (p > text && strchr("*}>$<", p[-1]));
        snprintf(path, sizeof path, "%.*s", (int)n, p);
        for (size_t end = strlen(path); end > 0 && path[end - 1] == '.';) path[--end] = '\0';
        if (!pattern && !strstr(path, "NAME")) check_path(f, line, path);
        p += n;
    }
}

static void check_citations(const source *f)
{
    for (size_t i = 0; i < f->n_lines; i++) {
        /* In code, only comment lines count: they have text but no code. */
        const bool comment = f->code_line[i][strspn(f->code_line[i], " ")] == '\0';
        if (!is_document(f->name) && !comment) continue;
        check_sections(f, i);
        check_paths(f, i);
    }
}

int main(int argc, char **argv)
{
    static const char *const folders[] = {"engine", "scheduler", "paged",    "compress", "cuda",
                                          "tests",  "bench",     "examples", "docs"};
    if (argc != 2 || chdir(argv[1]) != 0) {
        fprintf(stderr, "usage: tidy ROOT\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) read_tree(folders[i]);
    if (access("README.md", F_OK) == 0) read_file("README.md");
    for (size_t i = 0; i < N_RULES; i++) read_sections(&all_rules[i]);
    for (size_t i = 0; i < n_files; i++) {
        check_citations(&files[i]);
        if (is_document(files[i].name)) continue;
        check_size(&files[i]);
        check_text(&files[i]);
        check_includes(&files[i]);
    }
    link_files();
    for (size_t i = 0; i < n_files; i++) {
        check_circles(&files[i]);
        check_folder_circles(&files[i]);
    }
    check_files();
    check_functions();
    printf("tidy: %zu files, %zu faults\n", n_files, n_faults);
    return n_faults || !n_files ? 1 : 0;
}
