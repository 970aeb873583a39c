/* test_batch_input.c - reading lines from files and pipes, ids, and lines as requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/offline/batch_input.h"
#include "tests/lib/chat_params.h"

/* ---- lines ---- */

static char *temp_file(const char *text, size_t n)
{
    char *path = strdup("/tmp/cinch_input_XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, n), n);
    close(fd);
    return path;
}

static cn_line_reader *reader_of(const char *text, size_t n, size_t max_line_bytes)
{
    char *path = temp_file(text, n);
    cn_line_reader *r;
    assert_int_equal(cn_line_reader_open(&r, path, max_line_bytes), CN_OK);
    unlink(path);
    free(path);
    return r;
}

static void expect_line(cn_line_reader *r, const char *text, uint64_t number)
{
    cn_line line;
    cn_line_state state;
    assert_int_equal(cn_line_reader_next(r, 0, &line, &state), CN_OK);
    assert_int_equal(state, CN_LINE_READY);
    assert_int_equal(line.number, number);
    assert_int_equal(line.n, strlen(text));
    assert_memory_equal(line.text, text, line.n);
}

static void expect_end(cn_line_reader *r)
{
    cn_line line;
    cn_line_state state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cn_line_reader_next(r, 0, &line, &state), CN_OK);
        assert_int_equal(state, CN_LINE_END);
    }
    cn_line_reader_close(r);
}

static void lines_are_numbered_and_blank_ones_skipped(void **state)
{
    (void)state;
    static const char text[] = "\xEF\xBB\xBFone\r\n\n  \t\r\ntwo \nthree";
    cn_line_reader *r = reader_of(text, sizeof text - 1, 100);
    assert_int_equal(cn_line_reader_bytes_total(r), sizeof text - 1);
    expect_line(r, "one", 1);
    expect_line(r, "two ", 4);
    expect_line(r, "three", 5);
    assert_int_equal(cn_line_reader_bytes_done(r), sizeof text - 1);
    expect_end(r);
    expect_end(reader_of("", 0, 100));
    expect_end(reader_of("\n\n\n", 3, 100));
}

static void lines_above_the_limit_are_cut(void **state)
{
    (void)state;
    const size_t longest = 300000;
    char *text = malloc(3 * longest + 16);
    size_t n = 0;
    for (size_t len = longest - 1; len <= longest + 1; len++) {
        memset(text + n, 'a', len);
        text[n + len] = '\n';
        n += len + 1;
    }
    memcpy(text + n - 1, "\nend", 4);
    n += 3;
    cn_line_reader *r = reader_of(text, n, longest);
    cn_line line;
    cn_line_state s;
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(cn_line_reader_next(r, 0, &line, &s), CN_OK);
        assert_int_equal(line.number, i + 1);
        assert_int_equal(line.too_long, i == 2);
        assert_int_equal(line.n, i == 0 ? longest - 1 : longest);
    }
    expect_line(r, "end", 4);
    expect_end(r);
    free(text);
}

static void memory_does_not_grow_with_the_file(void **state)
{
    (void)state;
    enum { N = 50000, LINE_BYTES = 40 };
    char *text = malloc(N * LINE_BYTES);
    memset(text, 'x', N * LINE_BYTES);
    for (size_t i = 1; i <= N; i++) text[i * LINE_BYTES - 1] = '\n';
    cn_line_reader *r = reader_of(text, N * LINE_BYTES, 100);
    cn_line line;
    cn_line_state s;
    assert_int_equal(cn_line_reader_next(r, 0, &line, &s), CN_OK);
    const uint64_t allocations = cn_alloc_count();
    for (size_t i = 2; i <= N; i++) {
        assert_int_equal(cn_line_reader_next(r, 0, &line, &s), CN_OK);
        assert_int_equal(line.n, LINE_BYTES - 1);
    }
    assert_int_equal(cn_alloc_count(), allocations);
    expect_end(r);
    free(text);
}

static void reading_an_empty_pipe_returns_at_once(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    char path[64];
    snprintf(path, sizeof path, "/dev/fd/%d", fds[0]);
    cn_line_reader *r;
    assert_int_equal(cn_line_reader_open(&r, path, 100), CN_OK);
    assert_int_equal(cn_line_reader_bytes_total(r), 0);
    cn_line line;
    cn_line_state s;
    assert_int_equal(cn_line_reader_next(r, 0, &line, &s), CN_OK);
    assert_int_equal(s, CN_LINE_WAIT);
    assert_int_equal(write(fds[1], "a\nhal", 5), 5);
    expect_line(r, "a", 1);
    assert_int_equal(cn_line_reader_next(r, 10, &line, &s), CN_OK);
    assert_int_equal(s, CN_LINE_WAIT);
    assert_int_equal(write(fds[1], "f", 1), 1);
    close(fds[1]);
    close(fds[0]);
    expect_line(r, "half", 2);
    expect_end(r);
}

static void a_missing_file_and_a_directory_are_refused(void **state)
{
    (void)state;
    cn_line_reader *r;
    assert_int_equal(cn_line_reader_open(&r, "/no/such/file", 100), CN_ERR_IO);
    assert_non_null(strstr(cn_last_error(), "/no/such/file"));
    assert_int_equal(cn_line_reader_open(&r, "/tmp", 100), CN_ERR_IO);
}

/* ---- ids ---- */

static void ids_keep_their_marks(void **state)
{
    (void)state;
    cn_id_set set = {0};
    enum { N = 20000 };
    for (uint32_t i = 0; i < N; i++) {
        cn_id id = cn_id_of("custom_id", &i, sizeof i);
        assert_int_equal(cn_id_set_marks(&set, id), 0);
        assert_int_equal(cn_id_set_add(&set, id, i % 2 ? CN_ID_DONE : CN_ID_SEEN), CN_OK);
        if (i % 3 == 0) assert_int_equal(cn_id_set_add(&set, id, CN_ID_SEEN), CN_OK);
        if (i % 5 == 0) cn_id_set_put_hash(&set, id, i + 1);
    }
    assert_int_equal(set.len, N);
    for (uint32_t i = 0; i < N; i++) {
        unsigned want = i % 2 ? CN_ID_DONE : CN_ID_SEEN;
        if (i % 3 == 0) want |= CN_ID_SEEN;
        assert_int_equal(cn_id_set_marks(&set, cn_id_of("custom_id", &i, sizeof i)), want);
        assert_int_equal(cn_id_set_marks(&set, cn_id_of("line", &i, sizeof i)), 0);
        assert_int_equal(cn_id_set_hash(&set, cn_id_of("custom_id", &i, sizeof i)),
                         i % 5 ? 0 : i + 1);
        assert_int_equal(cn_id_set_hash(&set, cn_id_of("line", &i, sizeof i)), 0);
    }
    assert_true(set.cap * sizeof *set.slots <= (size_t)N * 43 + 64);
    cn_id_set_free(&set);
}

static void ids_read_back_from_text(void **state)
{
    (void)state;
    char text[CN_ID_TEXT_BYTES];
    for (uint32_t i = 0; i < 100; i++) {
        cn_id id = cn_id_of("custom_id", &i, sizeof i), back;
        cn_id_format(id, text);
        assert_true(cn_id_parse(text, &back));
        assert_true(back.hi == id.hi && back.lo == id.lo);
    }
    cn_id id;
    assert_false(cn_id_parse("", &id));
    assert_false(cn_id_parse("0123456789abcdef0123456789abcde", &id));
    assert_false(cn_id_parse("0123456789abcdef0123456789abcdeg", &id));
    assert_false(cn_id_parse("0123456789abcdef0123456789abcdef", &id)); /* the marks must be 0 */
}

/* ---- items ---- */

static const cn_api_defaults defaults = {.sampling = {.n = 1, .logprobs = -1}};
static const cn_batch_format openai = {NULL, NULL, NULL};
static const cn_batch_format graded = {NULL, NULL, "answer"};
static const cn_batch_format table = {"question", "idx", "answer"};
static const cn_batch_format plain = {"question", NULL, NULL};

static cn_status read_item(cn_batch_item *item, const char *text, const cn_batch_format *format)
{
    const cn_line line = {.text = text, .n = strlen(text), .number = 7};
    *item = (cn_batch_item){0};
    cn_status status = cn_batch_item_identify(item, &line, format);
    return status == CN_OK ? cn_batch_item_read(item, format, &defaults) : status;
}

#define CHAT_BODY "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"max_tokens\": 4}"

static void openai_lines_are_read(void **state)
{
    (void)state;
    cn_batch_item item;
    assert_int_equal(read_item(&item,
                               "{\"custom_id\": \"a\", \"method\": \"POST\", \"answer\": 5, "
                               "\"url\": \"/v1/chat/completions\", \"body\": " CHAT_BODY "}",
                               &graded),
                     CN_OK);
    assert_int_equal(item.line, 7);
    assert_string_equal(item.custom_id, "a");
    assert_string_equal(item.reference, "5");
    assert_int_equal(item.request.endpoint, CN_API_CHAT);
    assert_int_equal(item.request.params.sampling.max_tokens, 4);
    assert_int_equal(item.request.params.klass, CN_CLASS_BATCH);
    assert_ptr_equal(item.request.params.custom_id, item.custom_id);
    const cn_id id = item.id;
    cn_batch_item_drop_request(&item);
    assert_string_equal(item.custom_id, "a");
    cn_batch_item_free(&item);

    /* The same custom_id gives the same id, with any other content. */
    assert_int_equal(read_item(&item,
                               "{\"custom_id\": \"a\", \"url\": \"/v1/completions\", "
                               "\"body\": {\"prompt\": \"x\"}}",
                               &openai),
                     CN_OK);
    assert_true(item.id.hi == id.hi && item.id.lo == id.lo);
    assert_int_equal(item.request.endpoint, CN_API_COMPLETION);
    assert_null(item.reference);
    cn_batch_item_free(&item);
}

static void tables_are_read_by_field_name(void **state)
{
    (void)state;
    cn_batch_item item;
    assert_int_equal(read_item(&item, "{\"idx\": 12, \"question\": \"q\\u00e9\","
                                      "\"answer\": \"r\", \"temperature\": \"no option here\"}",
                               &table),
                     CN_OK);
    assert_string_equal(item.custom_id, "12");
    assert_string_equal(item.reference, "r");
    assert_int_equal(chat_size(&item.request.params), 1);
    assert_string_equal(chat_text(&item.request.params, 0, "role"), "user");
    assert_string_equal(chat_text(&item.request.params, 0, "content"), "q\xc3\xa9");
    cn_batch_item_free(&item);

    assert_int_equal(read_item(&item, "{\"question\": [{\"role\": \"system\", \"content\": \"s\"}, "
                                      "{\"role\": \"user\", \"content\": \"u\"}]}",
                               &plain),
                     CN_OK);
    assert_string_equal(item.custom_id, "7"); /* = the line number */
    assert_int_equal(chat_size(&item.request.params), 2);
    cn_batch_item_free(&item);
}

static void numbers_are_ids_while_they_are_exact(void **state)
{
    (void)state;
    static const char *const exact[][2] = {
        {"9223372036854775807", "9223372036854775807"},
        {"-9223372036854775808", "-9223372036854775808"},
        {"0.1", "0.1"},
        {"2.50", "2.5"},
        {"0.12345678901234566", "0.12345678901234566"},
        {"0.12345678901234568", "0.12345678901234568"},
        {"\"12345678901234567890\"", "12345678901234567890"},
    };
    static const char *const inexact[] = {"12345678901234567890", "9223372036854775808",
                                          "-12345678901234567890", "1e19"};
    char line[96];
    cn_batch_item item;
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++) {
        snprintf(line, sizeof line, "{\"idx\": %s, \"question\": \"q\"}", exact[i][0]);
        assert_int_equal(read_item(&item, line, &table), CN_OK);
        assert_string_equal(item.custom_id, exact[i][1]);
        cn_batch_item_free(&item);
    }
    for (size_t i = 0; i < sizeof inexact / sizeof *inexact; i++) {
        snprintf(line, sizeof line, "{\"idx\": %s, \"question\": \"q\"}", inexact[i]);
        assert_int_equal(read_item(&item, line, &table), CN_ERR_ARG);
        assert_non_null(strstr(cn_last_error(), "too large to be kept exactly: write it as "));
        assert_string_equal(cn_last_param(), "idx");
        assert_null(item.custom_id);
        cn_batch_item_free(&item);
    }
    assert_non_null(strstr(cn_last_error(), "idx: the number 1e19 is"));
}

static uint64_t asks(const char *text, const cn_batch_format *format)
{
    const cn_line line = {.text = text, .n = strlen(text), .number = 7};
    cn_batch_item item = {0};
    (void)cn_batch_item_identify(&item, &line, format);
    const uint64_t hash = item.request_hash;
    cn_batch_item_free(&item);
    return hash;
}

/* The hash of a request depends on its content, not on its spelling or on other fields. */
static void a_request_hash_covers_endpoint_and_body(void **state)
{
    (void)state;
    const uint64_t a = asks("{\"custom_id\": \"a\", \"url\": \"/v1/completions\", "
                            "\"body\": {\"prompt\": \"\\u00e9\", \"n\": 2}}", &openai);
    assert_true(a != 0);
    assert_true(a == asks("{\"url\":\"/v1/completions\",\"answer\":1,\"custom_id\":\"b\", "
                          "\"body\":{\"n\":2,\"prompt\":\"\xc3\xa9\"}}", &openai));
    assert_true(a != asks("{\"custom_id\": \"a\", \"url\": \"/v1/completions\", "
                          "\"body\": {\"prompt\": \"\\u00e9\", \"n\": 3}}", &openai));
    assert_true(a != asks("{\"custom_id\": \"a\", \"url\": \"/v1/chat/completions\", "
                          "\"body\": {\"prompt\": \"\\u00e9\", \"n\": 2}}", &openai));
    assert_true(asks("{\"custom_id\": \"a\"}", &openai) != 0);
    assert_int_equal(asks("{", &openai), 0);

    const uint64_t q = asks("{\"idx\": 1, \"question\": \"q\", \"answer\": 2}", &table);
    assert_true(q != 0 && q == asks("{\"question\": \"q\", \"idx\": 5}", &table));
    assert_true(q != asks("{\"idx\": 1, \"question\": \"r\", \"answer\": 2}", &table));
}

static const struct fault {
    const cn_batch_format *format;
    const char *text, *field, *says;
} faults[] = {
    {&openai, "{\"custom_id\": \"a\"", "", "not JSON"},
    {&openai, "{\"custom_id\": \"\xff\"}", "", "not JSON"},
    {&openai, "{\"custom_id\": \"a\", \"custom_id\": \"b\"}", "", "not JSON"},
    {&openai, "[1]", "", "an object"},
    {&openai, "7", "", "an object"},
    {&openai, "{}", "custom_id", "nothing"},
    {&openai, "{\"custom_id\": 3}", "custom_id", "3"},
    {&openai, "{\"custom_id\": \"\"}", "custom_id", "1 to 512"},
    {&openai, "{\"custom_id\": \"a\"}", "url", "nothing"},
    {&openai, "{\"custom_id\": \"a\", \"url\": \"/v1/embeddings\"}", "url", "embeddings"},
    {&openai, "{\"custom_id\": \"a\", \"method\": \"GET\"}", "method", "GET"},
    {&openai, "{\"custom_id\": \"a\", \"url\": \"/v1/completions\"}", "body", "nothing"},
    {&openai, "{\"custom_id\": \"a\", \"url\": \"/v1/completions\", \"body\": []}", "body",
     "array"},
    {&openai, "{\"custom_id\": \"a\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"x\", "
              "\"stream\": true}}", "stream", "batch"},
    {&openai, "{\"custom_id\": \"a\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"x\", "
              "\"tempreature\": 1}}", "tempreature", "unknown"},
    {&openai, "{\"custom_id\": \"a\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"x\"}, "
              "\"answer\": null, \"priority\": 3}", "priority", "unknown field, got 3"},
    {&openai, "{\"custom_id\": \"a\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"x\"}, "
              "\"answer\": 4}", "answer", "unknown"},
    {&graded, "{\"custom_id\": \"a\", \"answer\": [1]}", "answer", "array"},
    {&openai, "{\"custom_id\": \"a\\u0000b\"}", "custom_id", "custom_id: a text with a NUL"},
    {&openai, "{\"custom_id\": \"a\", \"method\": \"POST\\u0000\"}", "method", "NUL"},
    {&openai, "{\"custom_id\": \"a\", \"url\": \"/v1/completions\\u0000\"}", "url", "NUL"},
    {&openai, "{\"custom_id\": \"a\", \"url\": \"/v1/chat/completions\", \"body\": {\"messages\": "
              "[{\"role\": \"user\\u0000\", \"content\": \"a\"}]}}", "messages",
     "messages[0].role: a text with a NUL"},
    {&openai, "{\"custom_id\": \"a\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"x\", "
              "\"stop\": [\"a\", \"b\\u0000\"]}}", "stop", "stop[1]: a text with a NUL"},
    {&graded, "{\"custom_id\": \"a\", \"answer\": \"\\u0000\"}", "answer", "NUL"},
    {&table, "{\"idx\": \"\\u0000\", \"question\": \"q\"}", "idx", "NUL"},
    {&table, "{\"question\": \"q\"}", "idx", "nothing"},
    {&table, "{\"idx\": null, \"question\": \"q\"}", "idx", "null"},
    {&table, "{\"idx\": 1}", "question", "nothing"},
    {&table, "{\"idx\": 1, \"question\": 4}", "question", "4"},
};

static void faults_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        const struct fault *f = &faults[i];
        cn_batch_item item;
        if (read_item(&item, f->text, f->format) != CN_ERR_ARG) fail_msg("accepted: %s", f->text);
        if (!strstr(cn_last_error(), f->says))
            fail_msg("%s: '%s' lacks '%s'", f->text, cn_last_error(), f->says);
        assert_string_equal(cn_last_param(), f->field);
        assert_int_equal(item.line, 7);
        cn_batch_item_free(&item);
    }
}

static void unknown_members_of_a_line_are_warnings(void **state)
{
    (void)state;
    cn_api_unknown unknown;
    cn_batch_item item = {0};
    cn_api_defaults d = defaults;
    cn_api_unknown_init(&unknown, false);
    d.unknown = &unknown;
    cn_log_set_level(CN_LOG_ERROR);
    const char text[] = "{\"custom_id\": \"a\", \"url\": \"/v1/completions\", \"answer\": 1, "
                        "\"id\": 2, \"body\": {\"prompt\": \"x\", \"tempreature\": 1}}";
    const cn_line line = {.text = text, .n = strlen(text), .number = 1};
    assert_int_equal(cn_batch_item_identify(&item, &line, &graded), CN_OK);
    assert_int_equal(cn_batch_item_read(&item, &graded, &d), CN_OK);
    const json_t *warnings = item.request.warnings;
    assert_int_equal(json_array_size(warnings), 2);
    assert_string_equal(json_string_value(json_array_get(warnings, 0)),
                        "tempreature: unknown field, ignored");
    assert_string_equal(json_string_value(json_array_get(warnings, 1)),
                        "id: unknown field, ignored");
    cn_batch_item_free(&item);
    cn_api_unknown_destroy(&unknown);
}

/* A NUL in another field does not hide the custom_id: the error line has it. */
static void a_nul_in_another_field_keeps_the_custom_id(void **state)
{
    (void)state;
    cn_batch_item item;
    assert_int_equal(read_item(&item,
                               "{\"custom_id\": \"a\", \"url\": \"/v1/completions\", "
                               "\"body\": {\"prompt\": \"x\", \"stop\": \"\\u0000\"}}",
                               &openai),
                     CN_ERR_ARG);
    const cn_id id = cn_id_of("custom_id", "a", 1);
    assert_string_equal(item.custom_id, "a");
    assert_true(item.id.hi == id.hi && item.id.lo == id.lo);
    cn_batch_item_free(&item);
}

static void a_line_without_an_id_is_identified_by_number_and_text(void **state)
{
    (void)state;
    const cn_line lines[] = {{"{", 1, 3, 0, false}, {"{", 1, 3, 0, false}, {"{", 1, 4, 0, false},
                             {"[", 1, 3, 0, false}};
    cn_batch_item items[4] = {{0}};
    for (int i = 0; i < 4; i++)
        assert_int_equal(cn_batch_item_identify(&items[i], &lines[i], &openai), CN_ERR_ARG);
    assert_true(items[0].id.hi == items[1].id.hi && items[0].id.lo == items[1].id.lo);
    assert_true(items[0].id.hi != items[2].id.hi);
    assert_true(items[0].id.hi != items[3].id.hi);
    for (int i = 0; i < 4; i++) cn_batch_item_free(&items[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_numbered_and_blank_ones_skipped),
        cmocka_unit_test(lines_above_the_limit_are_cut),
        cmocka_unit_test(memory_does_not_grow_with_the_file),
        cmocka_unit_test(reading_an_empty_pipe_returns_at_once),
        cmocka_unit_test(a_missing_file_and_a_directory_are_refused),
        cmocka_unit_test(ids_keep_their_marks),
        cmocka_unit_test(ids_read_back_from_text),
        cmocka_unit_test(openai_lines_are_read),
        cmocka_unit_test(tables_are_read_by_field_name),
        cmocka_unit_test(numbers_are_ids_while_they_are_exact),
        cmocka_unit_test(a_request_hash_covers_endpoint_and_body),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(unknown_members_of_a_line_are_warnings),
        cmocka_unit_test(a_nul_in_another_field_keeps_the_custom_id),
        cmocka_unit_test(a_line_without_an_id_is_identified_by_number_and_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
