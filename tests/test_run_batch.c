/* test_run_batch.c - runs `cinch run-batch` with the bundled checkpoint. After any end of a run
 * (kill -9, an incomplete line, a full disk, signals, --until), the following runs complete the
 * file, and its content equals that of one undisturbed run. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>

enum { N_REQUESTS = 48, MAX_ARGS = 48, KILL_ROUNDS = 25 };

static char program[512], dir[] = "/tmp/cinch_e2e_XXXXXX";
static char in_path[64], out_path[64], log_path[64], reference_path[64];

/* ---- files ---- */

static void put_text(const char *path, const char *mode, const char *text)
{
    FILE *f = fopen(path, mode);
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static char *get_text(const char *path)
{
    static char text[1 << 20];
    FILE *f = fopen(path, "r");
    text[0] = '\0';
    if (!f) return text;
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    return text;
}

static size_t count_lines(const char *path)
{
    size_t n = 0;
    for (const char *p = get_text(path); (p = strchr(p, '\n')); p++) n++;
    return n;
}

/* Writes requests of different lengths, so that they end at different times. */
static void write_input(int n)
{
    put_text(in_path, "w", "");
    for (int i = 0; i < n; i++) {
        char line[512];
        snprintf(line, sizeof line,
                 "{\"custom_id\": \"r%d\", \"method\": \"POST\", "
                 "\"url\": \"/v1/chat/completions\", \"body\": {\"messages\": [{\"role\": "
                 "\"user\", \"content\": \"Compute %d * %d by hand.\"}], \"max_tokens\": %d}}\n",
                 i, 12345 + i, 67 + i, 3 + i % 17);
        put_text(in_path, "a", line);
    }
}

/* Maps each custom_id to the text of its answer, or the error. Refuses incomplete lines, and ids
 * with two lines. */
static json_t *read_output(const char *path)
{
    json_t *all = json_object();
    char *text = get_text(path);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        json_error_t e;
        json_t *object = json_loads(line, 0, &e);
        if (!object) fail_msg("%s: incomplete line: %s", path, line);
        const char *id = json_string_value(json_object_get(object, "custom_id"));
        json_t *body = json_object_get(json_object_get(object, "response"), "body");
        json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
        json_t *message = json_object_get(choice, "message");
        json_t *content = message ? json_object_get(message, "content")
                                  : json_object_get(json_object_get(body, "error"), "message");
        assert_non_null(id);
        assert_non_null(content);
        if (json_object_get(all, id)) fail_msg("%s has two lines", id);
        json_object_set(all, id, content);
        json_decref(object);
    }
    return all;
}

static void expect_as_reference(void)
{
    json_t *want = read_output(reference_path), *got = read_output(out_path);
    assert_int_equal(json_object_size(want), N_REQUESTS);
    const char *id;
    json_t *text;
    json_object_foreach(want, id, text)
    {
        json_t *other = json_object_get(got, id);
        if (!other) fail_msg("no line of %s", id);
        if (!json_equal(text, other))
            fail_msg("%s: '%s', undisturbed '%s'", id, json_string_value(other),
                     json_string_value(text));
    }
    assert_int_equal(json_object_size(got), N_REQUESTS);
    json_decref(want);
    json_decref(got);
}

/* ---- the program ---- */

typedef struct launch {
    const char *in, *out;
    const char *extra[16]; /* NULL at the end */
    rlim_t max_file_bytes; /* 0: no limit */
    const char *tz;
    int stdin_fd, stdout_fd; /* 0: /dev/null and the log */
} launch;

static void exec_program(const launch *l)
{
    const char *argv[MAX_ARGS] = {program, "run-batch", "--model", "examples/tiny-reasoner",
                                  "--temperature", "0", "--threads", "1", "--max-inflight", "8",
                                  "--kv-cache-memory-bytes", "32M", "--progress", "none",
                                  "-i", l->in ? l->in : in_path, "-o", l->out ? l->out : out_path};
    size_t n = 0;
    while (argv[n]) n++;
    for (size_t i = 0; l->extra[i]; i++) argv[n++] = l->extra[i];
    int null = open("/dev/null", O_RDWR), log = open(log_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(l->stdin_fd ? l->stdin_fd : null, 0);
    dup2(l->stdout_fd ? l->stdout_fd : log, 1);
    dup2(log, 2);
    if (l->tz) setenv("TZ", l->tz, 1);
    if (l->max_file_bytes) {
        struct rlimit limit = {l->max_file_bytes, l->max_file_bytes};
        setrlimit(RLIMIT_FSIZE, &limit);
    }
    execv(program, (char *const *)argv);
    _exit(127);
}

static pid_t start(const launch *l)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) exec_program(l);
    return pid;
}

static int wait_exit(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void expect_exit(int want, const launch *l)
{
    int got = wait_exit(start(l));
    if (got != want) fail_msg("expected exit code %d, got %d: %s", want, got, get_text(log_path));
}

static void expect_log(const char *text)
{
    if (!strstr(get_text(log_path), text)) fail_msg("no '%s' in: %s", text, get_text(log_path));
}

static void sleep_ms(int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* Waits until the output has n lines. False when the program ended first. */
static bool wait_lines(pid_t pid, size_t n)
{
    while (count_lines(out_path) < n) {
        if (kill(pid, 0) != 0) return false;
        siginfo_t info = {0};
        if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid)
            return false;
        sleep_ms(2);
    }
    return true;
}

static const launch plain = {0}, resume = {.extra = {"--resume"}};

/* ---- set-up ---- */

/* Finds build/cinch next to build/tests/, where this program is. */
static void find_program(void)
{
    char self[256] = "";
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    *strrchr(self, '/') = '\0';
    snprintf(program, sizeof program, "%s/../cinch", self);
}

static int set_up_all(void **state)
{
    (void)state;
    find_program();
    if (access(program, X_OK) != 0 || !mkdtemp(dir)) return -1;
    snprintf(in_path, sizeof in_path, "%s/in.jsonl", dir);
    snprintf(out_path, sizeof out_path, "%s/out.jsonl", dir);
    snprintf(log_path, sizeof log_path, "%s/log", dir);
    snprintf(reference_path, sizeof reference_path, "%s/reference.jsonl", dir);
    write_input(N_REQUESTS);
    expect_exit(0, &(launch){.out = reference_path});
    return 0;
}

static int tear_down_all(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static int set_up(void **state)
{
    (void)state;
    char record[80];
    snprintf(record, sizeof record, "%s.cinch-run", out_path);
    unlink(out_path);
    unlink(record);
    write_input(N_REQUESTS);
    return 0;
}

/* ---- tests ---- */

static void two_runs_give_the_same_file(void **state)
{
    (void)state;
    expect_exit(0, &(launch){.extra = {"--max-inflight", "48", "--threads", "2"}});
    expect_as_reference();
    expect_exit(1, &plain);
    expect_log("--resume");
    expect_exit(0, &resume);
    expect_log("48 done before");
    expect_as_reference();
}

static void unknown_fields_are_counted_or_refused(void **state)
{
    (void)state;
    static const char line[] =
        "{\"custom_id\": \"u%d\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": "
        "{\"prompt\": \"1 + 1\", \"max_tokens\": 1, \"mystery\": 1}}\n";
    char text[256];
    put_text(in_path, "w", "");
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text, line, i);
        put_text(in_path, "a", text);
    }
    expect_exit(0, &plain);
    expect_log("warnings: 2 answers");
    expect_log("the field mystery, which is ignored: unknown field");
    assert_null(strstr(strstr(get_text(log_path), "field mystery") + 1, "field mystery"));
    assert_non_null(strstr(get_text(out_path), "\"warnings\":[\"mystery: unknown field"));
    unlink(out_path);
    expect_exit(2, &(launch){.extra = {"--unknown-fields", "refuse"}});
    expect_log("0 answered, 2 errors");
}

/* Kills the program at moments from its start to after its end. */
static void kill_9_at_any_moment_loses_nothing(void **state)
{
    (void)state;
    srand(11);
    size_t lines = 0;
    int killed = 0;
    for (int round = 0; round < KILL_ROUNDS; round++) {
        pid_t pid = start(&resume);
        /* Every second round waits for new lines before it kills; the others wait for a time. */
        if (round % 2)
            wait_lines(pid, lines + 1 + (size_t)(rand() % 3));
        else
            sleep_ms(rand() % 150);
        kill(pid, SIGKILL);
        killed += wait_exit(pid) == -SIGKILL;
        json_t *so_far = read_output(out_path); /* no id twice; only the last may be incomplete */
        assert_true(json_object_size(so_far) >= lines);
        lines = json_object_size(so_far);
        json_decref(so_far);
    }
    assert_true(killed >= KILL_ROUNDS / 2);
    expect_exit(0, &resume);
    expect_as_reference();
}

static void an_incomplete_last_line_is_answered_again(void **state)
{
    (void)state;
    expect_exit(0, &plain);
    struct stat st;
    assert_int_equal(stat(out_path, &st), 0);
    static const int cuts[] = {1, 2, 100, 401, 2000};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        assert_int_equal(truncate(out_path, st.st_size - cuts[i]), 0);
        expect_exit(0, &resume);
        expect_log("removed an incomplete last line");
        expect_as_reference();
        assert_int_equal(stat(out_path, &st), 0);
    }
}

static void a_full_disk_stops_with_a_file_to_resume(void **state)
{
    (void)state;
    for (rlim_t limit = 4096; limit <= 12288; limit += 4096) {
        launch full = resume;
        full.max_file_bytes = limit;
        expect_exit(3, &full);
        expect_log("write: File too large");
        assert_true(count_lines(out_path) > 0);
        const char *text = get_text(out_path);
        assert_true(text[strlen(text) - 1] == '\n');
    }
    expect_exit(0, &resume);
    expect_as_reference();
}

static void one_signal_drains_and_a_second_stops(void **state)
{
    (void)state;
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 3; i++) {
        signal(signals[i], SIG_DFL); /* a shell's background job ignores it, and so would cinch */
        const size_t written = count_lines(out_path);
        pid_t pid = start(&resume);
        assert_true(wait_lines(pid, written + 1));
        kill(pid, signals[i]);
        if (signals[i] == SIGHUP) kill(pid, SIGHUP); /* from the shell, then from the system */
        assert_int_equal(wait_exit(pid), 3);
        expect_log("interrupted");
        assert_true(count_lines(out_path) < N_REQUESTS);
    }
    const size_t before = count_lines(out_path);
    pid_t pid = start(&resume);
    assert_true(wait_lines(pid, before + 1));
    kill(pid, SIGINT);
    sleep_ms(1);
    kill(pid, SIGINT);
    assert_int_equal(wait_exit(pid), 3);
    expect_exit(0, &resume);
    expect_as_reference();
}

static void a_pipe_whose_reader_leaves_ends_the_run(void **state)
{
    (void)state;
    char bytes[100];
    assert_int_equal(mkfifo(out_path, 0600), 0);
    pid_t pid = start(&plain);
    const int fd = open(out_path, O_RDONLY);
    assert_true(fd >= 0 && read(fd, bytes, sizeof bytes) > 0);
    close(fd);
    assert_int_equal(wait_exit(pid), 1);
    expect_log("write: Broken pipe");
    assert_int_equal(unlink(out_path), 0);
}

/* Returns how the process ended, or kills it after 30 s. */
static int wait_exit_for_30_s(pid_t pid)
{
    siginfo_t info = {0};
    for (int ms = 0; ms < 30000 && info.si_pid == 0; ms += 10) {
        assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
        sleep_ms(10);
    }
    if (info.si_pid == 0) kill(pid, SIGKILL);
    return wait_exit(pid);
}

/* The pipe is full, so that the run waits in a write: the second signal ends it. */
static void a_reader_that_reads_nothing_cannot_keep_the_run(void **state)
{
    (void)state;
    enum { SIGNALS = 2, LEAST_PIPE_BYTES = 4096 };
    assert_int_equal(mkfifo(out_path, 0600), 0);
    const int fd = open(out_path, O_RDWR);
    assert_true(fd >= 0 && fcntl(fd, F_SETPIPE_SZ, LEAST_PIPE_BYTES) > 0);
    pid_t pid = start(&plain);
    int n = 0;
    for (int ms = 0; ms < 30000 && n < LEAST_PIPE_BYTES / 2; ms += 10) {
        assert_int_equal(ioctl(fd, FIONREAD, &n), 0);
        sleep_ms(10);
    }
    sleep_ms(300);
    for (int i = 0; i < SIGNALS; i++) {
        kill(pid, SIGTERM);
        sleep_ms(50);
    }
    const int ended = wait_exit_for_30_s(pid);
    if (ended != 3) fail_msg("ended with %d", ended);
    close(fd);
    assert_int_equal(unlink(out_path), 0);
}

/* Uses a time zone in which it is 11:59:58 now, so that 12:00 is two seconds away. */
static void until_leaves_the_rest_to_the_next_run(void **state)
{
    (void)state;
    write_input(N_REQUESTS);
    for (int i = 0; i < 40; i++) {
        char line[256];
        snprintf(line, sizeof line,
                 "{\"custom_id\": \"long%d\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": "
                 "\"Sort: 1 2\", \"max_tokens\": 2000, \"ignore_eos\": true}}\n",
                 i);
        put_text(in_path, "a", line);
    }
    const long shows = 11 * 3600 + 59 * 60 + 58, day = 24 * 3600;
    const long west = (time(NULL) % day - shows + day) % day;
    char tz[32];
    snprintf(tz, sizeof tz, "AAA%ld:%02ld:%02ld", west / 3600, west / 60 % 60, west % 60);
    const time_t began = time(NULL);
    expect_exit(3, &(launch){.extra = {"--until", "12:00", "--max-inflight", "2"}, .tz = tz});
    expect_log("--until");
    assert_true(time(NULL) - began < 60);
    assert_true(count_lines(out_path) < N_REQUESTS + 40);
}

static void faults_become_error_lines_and_strict_stops(void **state)
{
    (void)state;
    put_text(in_path, "w", "");
    put_text(in_path, "a",
             "{\"custom_id\": \"a\", \"url\": \"/v1/completions\", \"body\": "
             "{\"prompt\": [5, 6, 7], \"max_tokens\": 2, \"logprobs\": 2}}\n"
             "{\"custom_id\": \"b\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"x\", "
             "\"max_tokens\": 9000}}\n"
             "{\"custom_id\": \"c\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"x\", "
             "\"kv\": {\"tempo\": 2}}}\n"
             "{\"custom_id\": \"a\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"x\"}}\n"
             "nonsense\n"
             "{\"custom_id\": \"d\", \"url\": \"/v1/chat/completions\", \"body\": {\"messages\": "
             "[{\"role\": \"user\", \"content\": \"Sort: 2 1\"}], \"max_tokens\": 2, \"n\": 2, "
             "\"temperature\": 1, \"logprobs\": true, \"top_logprobs\": 1}}\n");
    expect_exit(2, &plain);
    const char *text = get_text(out_path);
    assert_int_equal(count_lines(out_path), 6);
    static const char *const wanted[] = {"\"line\":2",  "\"line\":3", "\"line\":4", "\"line\":5",
                                         "\"param\":\"kv\"", "\"param\":\"max_tokens\"",
                                         "duplicate_custom_id", "\"top_logprobs\"",
                                         "\"index\":1"};
    text = get_text(out_path);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!strstr(text, wanted[i])) fail_msg("no %s in %s", wanted[i], text);
    expect_exit(2, &resume);
    assert_int_equal(count_lines(out_path), 6);
    expect_exit(2, &(launch){.extra = {"--resume", "--retry-errors"}});
    assert_int_equal(count_lines(out_path), 6);

    set_up(state);
    put_text(in_path, "a", "nonsense\n");
    expect_exit(3, &(launch){.extra = {"--strict", "--max-inflight", "1"}});
    expect_log("line 49");
    assert_int_equal(count_lines(out_path), N_REQUESTS);
    expect_as_reference();
}

/* Token 188 of the bundled tokenizer is a NUL byte. A prompt may have it; a custom_id may not. */
static void a_file_with_nuls_is_resumed(void **state)
{
    (void)state;
    put_text(in_path, "w",
             "{\"custom_id\": \"chat\", \"url\": \"/v1/chat/completions\", \"body\": "
             "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"max_tokens\": 3, "
             "\"logprobs\": true, \"logit_bias\": {\"188\": 100}}}\n"
             "{\"custom_id\": \"text\", \"url\": \"/v1/completions\", \"body\": "
             "{\"prompt\": \"hi\", \"max_tokens\": 3, \"logprobs\": 2, "
             "\"logit_bias\": {\"188\": 100}}}\n"
             "{\"custom_id\": \"a\\u0000b\", \"url\": \"/v1/completions\", \"body\": "
             "{\"prompt\": \"hi\"}}\n"
             "{\"custom_id\": \"prompt\", \"url\": \"/v1/completions\", \"body\": "
             "{\"prompt\": \"a\\u0000b\"}}\n");
    expect_exit(2, &plain);
    expect_log("3 answered, 1 errors");
    expect_log("line 3: custom_id: a text with a NUL");
    const char *text = get_text(out_path);
    assert_non_null(strstr(text, "\"content\":\"\\u0000\\u0000\\u0000\""));
    assert_non_null(strstr(text, "\"text\":\"\\u0000\\u0000\\u0000\""));
    assert_non_null(strstr(text, "\"text_offset\":[0,1,2]"));
    assert_non_null(strstr(text, "\"line\":3"));
    assert_non_null(strstr(text, "\"custom_id\":\"prompt\""));
    expect_exit(2, &resume);
    expect_log("0 answered, 0 errors, 4 done before");
    expect_exit(2, &(launch){.extra = {"--resume", "--retry-errors"}});
    expect_log("0 answered, 1 errors, 3 done before");
    assert_int_equal(count_lines(out_path), 4);
}

/* A line that can never be queued is an error line, and the lines after it are answered. */
static void a_line_of_more_prompts_than_the_queue_is_an_error(void **state)
{
    (void)state;
    put_text(in_path, "w",
             "{\"custom_id\": \"a\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": "
             "[\"a\", \"b\", \"c\"], \"max_tokens\": 2}}\n"
             "{\"custom_id\": \"b\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": "
             "[\"a\", \"b\"], \"max_tokens\": 2}}\n");
    expect_exit(2, &(launch){.extra = {"--max-queue", "2"}});
    expect_log("1 answered, 1 errors");
    assert_non_null(strstr(get_text(out_path),
                           "prompt: 3 prompts with 3 samples exceed the queue of 2: send fewer"));
    assert_int_equal(count_lines(out_path), 2);
}

/* Token 87 is "x". Its bias would make it the answer, but it is a bad word. */
static void lines_may_exclude_tokens(void **state)
{
    (void)state;
    put_text(in_path, "w",
             "{\"custom_id\": \"allowed\", \"url\": \"/v1/chat/completions\", \"body\": "
             "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"max_tokens\": 3, "
             "\"allowed_token_ids\": [188]}}\n"
             "{\"custom_id\": \"bad\", \"url\": \"/v1/completions\", \"body\": "
             "{\"prompt\": \"hi\", \"max_tokens\": 2, \"allowed_token_ids\": [87, 188], "
             "\"logit_bias\": {\"87\": 100}, \"bad_words\": [\"x\"]}}\n"
             "{\"custom_id\": \"none\", \"url\": \"/v1/completions\", \"body\": "
             "{\"prompt\": \"hi\", \"allowed_token_ids\": []}}\n");
    expect_exit(2, &plain);
    expect_log("2 answered, 1 errors");
    const char *text = get_text(out_path);
    assert_non_null(strstr(text, "\"content\":\"\\u0000\\u0000\\u0000\""));
    assert_non_null(strstr(text, "\"text\":\"\\u0000\\u0000\""));
    assert_non_null(strstr(text, "allowed_token_ids: expected an array of token ids"));
}

/* Writes one prompt per line, without ids. */
static void write_prompts(const char *const *prompts)
{
    put_text(in_path, "w", "");
    for (; *prompts; prompts++) {
        char line[128];
        snprintf(line, sizeof line, "{\"p\": \"%s\"}\n", *prompts);
        put_text(in_path, "a", line);
    }
}

static void changed_requests_are_counted(void **state)
{
    (void)state;
    expect_exit(0, &plain);
    expect_exit(0, &resume);
    assert_null(strstr(get_text(log_path), "have changed"));
    char *text = strdup(get_text(in_path));
    for (char *at = text; (at = strstr(at, "by hand.")); at++) memcpy(at, "quickly!", 8);
    put_text(in_path, "w", text);
    free(text);
    char summary[80];
    snprintf(summary, sizeof summary, "%s/summary.json", dir);
    expect_exit(0, &(launch){.extra = {"--resume", "--summary-json", summary}});
    json_t *s = json_load_file(summary, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(s, "changed")), N_REQUESTS);
    json_decref(s);
    expect_log("48 lines of");
    expect_log("have changed since they were answered (r0, r1, r2, ...)");
    expect_log("48 done before");
    expect_as_reference();

    /* Without ids, a new line at the top changes the identity of every line. */
    const launch table = {.extra = {"--prompt-field", "p", "--max-tokens", "2", "--resume"}};
    unlink(out_path);
    write_prompts((const char *const[]){"one", "two", NULL});
    expect_exit(0, &table);
    write_prompts((const char *const[]){"zero", "one", "two", NULL});
    expect_exit(0, &table);
    expect_log("1 answered, 0 errors, 2 done before");
    expect_log("2 lines of");
    expect_log("(1, 2)");
}

static void resume_refuses_another_model_or_other_options(void **state)
{
    (void)state;
    expect_exit(0, &plain);
    expect_exit(1, &(launch){.extra = {"--resume", "--top-k", "3"}});
    expect_log("--top-k was 0 and is now 3");
    expect_exit(0, &(launch){.extra = {"--resume", "--max-num-seqs", "3"}});
    char record[80], copy[128];
    snprintf(record, sizeof record, "%s.cinch-run", out_path);
    unlink(record);
    expect_exit(1, &resume);
    expect_log("cinch-run");
    snprintf(copy, sizeof copy, "%s/model", dir);
    expect_exit(1, &(launch){.extra = {"--model", copy}});
    expect_exit(1, &(launch){.in = "/no/such/file"});
    expect_exit(1, &(launch){.out = in_path, .extra = {"--resume"}});
}

static void damaged_files_of_a_run_are_named(void **state)
{
    (void)state;
    char record[80], linked[96];
    snprintf(record, sizeof record, "%s.cinch-run", out_path);
    snprintf(linked, sizeof linked, "%s.tmp", record);
    put_text(reference_path, "a", "");
    assert_int_equal(symlink(reference_path, linked), 0);
    expect_exit(0, &plain); /* replaces the link, and not the file that it names */
    assert_int_equal(count_lines(reference_path), N_REQUESTS);
    const int fd = open(out_path, O_WRONLY);
    assert_int_equal(pwrite(fd, "\0\0\0\0", 4, 10), 4);
    close(fd);
    expect_exit(1, &resume);
    expect_log("output line 1 is damaged");
    expect_log("remove the line");
    put_text(record, "w", "");
    expect_exit(1, &resume);
    expect_log("the record of the run is damaged (write another output file)");
}

static void pipes_are_answered_line_by_line(void **state)
{
    (void)state;
    int to[2], from[2];
    assert_int_equal(pipe2(to, O_CLOEXEC), 0);
    assert_int_equal(pipe2(from, O_CLOEXEC), 0);
    pid_t pid = start(&(launch){.in = "-", .out = "-", .stdin_fd = to[0], .stdout_fd = from[1]});
    close(to[0]);
    close(from[1]);
    FILE *answers = fdopen(from[0], "r");
    for (int i = 0; i < 3; i++) {
        char line[8192], want[32];
        int n = snprintf(line, sizeof line,
                         "{\"custom_id\": \"p%d\", \"url\": \"/v1/completions\", \"body\": "
                         "{\"prompt\": \"Sort: 1\", \"max_tokens\": 2}}\n",
                         i);
        assert_int_equal(write(to[1], line, (size_t)n), n);
        snprintf(want, sizeof want, "\"custom_id\":\"p%d\"", i);
        assert_non_null(fgets(line, sizeof line, answers)); /* before the next line is sent */
        assert_non_null(strstr(line, want));
    }
    close(to[1]);
    assert_int_equal(fgetc(answers), EOF);
    assert_int_equal(wait_exit(pid), 0);
    fclose(answers);
}

static void a_wrong_model_makes_no_file(void **state)
{
    (void)state;
    unlink(out_path);
    launch l = {.extra = {"--model", "/no/such/model"}};
    expect_exit(1, &l);
    expect_log("/no/such/model");
    assert_int_equal(access(out_path, F_OK), -1);
}

/* With any reasoning parser, only the answer is graded. */
static void reasoning_is_not_graded(void **state)
{
    (void)state;
    FILE *f = fopen("examples/tiny-reasoner/prompts/needle.jsonl", "r");
    char first[8192];
    assert_non_null(f);
    assert_non_null(fgets(first, sizeof first, f));
    fclose(f);
    put_text(in_path, "w", first);
    static const char *const parsers[] = {"none", "auto", "qwen3"};
    for (size_t i = 0; i < sizeof parsers / sizeof *parsers; i++) {
        unlink(out_path);
        launch graded = {.extra = {"--prompt-field", "prompt", "--answer-field", "answer",
                                   "--grade", "exact", "--temperature", "0", "--max-tokens", "64",
                                   "--reasoning-parser", parsers[i]}};
        expect_exit(0, &graded);
        assert_non_null(strstr(get_text(log_path), "exact match 1/1\n"));
    }
}

static void answers_are_graded_over_all_runs(void **state)
{
    (void)state;
    put_text(in_path, "w",
             "{\"q\": \"Sort: 3 1 2\", \"a\": \"1 2 3\"}\n{\"q\": \"Sort: 2 1\", \"a\": \"7\"}\n");
    launch graded = {.extra = {"--resume", "--prompt-field", "q", "--answer-field", "a", "--grade",
                               "exact", "--max-tokens", "8", "--summary-json", log_path}};
    char summary[80];
    snprintf(summary, sizeof summary, "%s/summary.json", dir);
    graded.extra[10] = summary;
    expect_exit(0, &graded);
    put_text(in_path, "a", "{\"q\": \"Sort: 5 4\", \"a\": \"4 5\"}\n");
    expect_exit(0, &graded);
    const char *log = get_text(log_path), *last = strstr(log, "exact match ");
    assert_non_null(last);
    assert_non_null(strstr(last, "/3\n"));
    assert_string_equal(strchr(last, '\n'), "\n"); /* it is the last line of the log */
    json_t *s = json_load_file(summary, 0, NULL);
    assert_non_null(s);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(s, "exact_match"), "of")),
                     3);
    assert_int_equal(json_integer_value(json_object_get(s, "answered")), 1);
    assert_int_equal(json_integer_value(json_object_get(s, "skipped")), 2);
    json_decref(s);
}

static json_int_t number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    assert_true(json_is_integer(v));
    return json_integer_value(v);
}

/* The KV figures of all lines, including loops that were retried, must add up to what the engine
 * counted. Replays must count only in the audit's figures. */
static void usage_adds_up_to_the_totals(void **state)
{
    (void)state;
    char summary[80], summary_option[100], row[4096];
    snprintf(summary, sizeof summary, "%s/summary.json", dir);
    snprintf(summary_option, sizeof summary_option, "--summary-json=%s", summary);
    FILE *prompts = fopen("examples/tiny-reasoner/prompts/ledger.jsonl", "r");
    assert_non_null(prompts);
    put_text(in_path, "w", "");
    for (int i = 0; i < 6 && fgets(row, sizeof row, prompts); i++) put_text(in_path, "a", row);
    fclose(prompts);
    const launch l = {.extra = {"--prompt-field=prompt", "--id-field=id", "--kv-policy=window",
                                "--kv-budget=64", "--block-size=16", "--loop-rescue=budget",
                                "--audit=50%", "--repetition-max-pattern-size=64",
                                "--repetition-min-pattern-size=1", "--repetition-min-count=3",
                                "--max-tokens=400", summary_option}};
    expect_exit(0, &l);

    json_int_t compressions = 0, evicted = 0, freed = 0, tokens = 0;
    FILE *f = fopen(out_path, "r");
    json_t *line;
    while ((line = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL))) {
        const json_t *body = json_object_get(json_object_get(line, "response"), "body");
        const json_t *first = json_object_get(json_object_get(line, "loop_rescue"), "first");
        const json_t *of[] = {json_object_get(body, "usage"), first};
        for (int i = 0; i < 2 && of[i]; i++) {
            const json_t *kv = json_object_get(of[i], "kv");
            assert_string_equal(json_string_value(json_object_get(kv, "policy")), "window");
            assert_int_equal(number(kv, "budget"), of[i] != first && first ? 256 : 64);
            assert_true(number(kv, "peak_tokens") > 0);
            compressions += number(kv, "compressions");
            evicted += number(kv, "evicted");
            freed += number(kv, "freed_bytes");
            tokens += number(of[i], "completion_tokens");
        }
        json_decref(line);
    }
    fclose(f);
    json_t *s = json_load_file(summary, 0, NULL);
    const json_t *kv = json_object_get(s, "kv"), *audit = json_object_get(s, "audit");
    assert_int_equal(number(s, "answered"), 6);
    assert_true(compressions > 0 && number(s, "loop_rescues") > 0);
    assert_int_equal(number(kv, "compressions"), compressions);
    assert_int_equal(number(kv, "evicted_tokens"), evicted);
    assert_int_equal(number(kv, "freed_bytes"), freed);
    assert_int_equal(number(s, "completion_tokens"), tokens);
    assert_in_range(number(audit, "outputs"), 1, 5);
    assert_true(json_real_value(json_object_get(audit, "same_best_share")) < 1);
    assert_true(json_real_value(json_object_get(audit, "logprob_gap_per_token")) > 0);
    json_decref(s);
}

#define TEST(name) cmocka_unit_test_setup(name, set_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(two_runs_give_the_same_file),
        TEST(unknown_fields_are_counted_or_refused),
        TEST(kill_9_at_any_moment_loses_nothing),
        TEST(an_incomplete_last_line_is_answered_again),
        TEST(a_full_disk_stops_with_a_file_to_resume),
        TEST(one_signal_drains_and_a_second_stops),
        TEST(a_pipe_whose_reader_leaves_ends_the_run),
        TEST(a_reader_that_reads_nothing_cannot_keep_the_run),
        TEST(until_leaves_the_rest_to_the_next_run),
        TEST(faults_become_error_lines_and_strict_stops),
        TEST(a_line_of_more_prompts_than_the_queue_is_an_error),
        TEST(lines_may_exclude_tokens),
        TEST(a_file_with_nuls_is_resumed),
        TEST(changed_requests_are_counted),
        TEST(resume_refuses_another_model_or_other_options),
        TEST(damaged_files_of_a_run_are_named),
        TEST(pipes_are_answered_line_by_line),
        TEST(answers_are_graded_over_all_runs),
        TEST(a_wrong_model_makes_no_file),
        TEST(reasoning_is_not_graded),
        TEST(usage_adds_up_to_the_totals),
    };
    return cmocka_run_group_tests(tests, set_up_all, tear_down_all);
}
