/* test_safetensors.c - valid files, sharded or whole, and every kind of invalid file: each gives an
 * error that names the file, the tensor and the numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "engine/checkpoint/safetensors.h"
#include "tests/lib/tensor_file.h"

static void expect_refusal_of(const cn_buf *image, const char *words)
{
    cn_safetensors *s = (cn_safetensors *)1;
    assert_int_equal(cn_safetensors_open_image(&s, image->data, image->len, "f"), CN_ERR_MODEL);
    assert_null(s);
    if (!strstr(cn_last_error(), words)) fail_msg("\"%s\" lacks \"%s\"", cn_last_error(), words);
}

static void expect_refusal(const char *header, size_t data_bytes, const char *words)
{
    cn_buf image = {0};
    tensor_file_raw(&image, header, data_bytes);
    expect_refusal_of(&image, words);
    cn_buf_free(&image);
}

static void test_views(void **state)
{
    (void)state;
    const float a[6] = {1, 2, 3, 4, 5, 6};
    const uint8_t odd[3] = {7, 8, 9};
    tensor_file f = {0};
    tensor_file_add(&f, "z.odd", "U8", 0, 3, odd, sizeof odd);
    tensor_file_add(&f, "a", "F32", 2, 3, a, sizeof a);
    tensor_file_add(&f, "empty", "BF16", 0, 0, NULL, 0);
    cn_buf image = {0};
    tensor_file_image(&f, &image);
    cn_safetensors *s;
    assert_int_equal(cn_safetensors_open_image(&s, image.data, image.len, "f"), CN_OK);
    assert_int_equal(cn_safetensors_count(s), 3);
    assert_string_equal(cn_safetensors_at(s, 0)->name, "a");
    const cn_st_tensor *t = cn_safetensors_find(s, "a");
    assert_non_null(t);
    assert_int_equal(t->dtype, CN_ST_F32);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->n_bytes, sizeof a);
    assert_memory_equal(t->data, a, sizeof a);
    char shape[64];
    assert_string_equal(cn_st_shape_text(t, shape, sizeof shape), "[2, 3]");
    assert_memory_equal(cn_safetensors_find(s, "z.odd")->data, odd, 3);
    assert_int_equal(cn_safetensors_find(s, "empty")->n_bytes, 0);
    assert_null(cn_safetensors_find(s, "b"));
    cn_safetensors_close(s);
    cn_buf_free(&image);
    tensor_file_free(&f);
}

static void test_bundled_checkpoint(void **state)
{
    (void)state;
    cn_safetensors *s;
    assert_int_equal(cn_safetensors_open(&s, "examples/tiny-reasoner"), CN_OK);
    uint64_t total = 0;
    for (size_t i = 0; i < cn_safetensors_count(s); i++) total += cn_safetensors_at(s, i)->n_bytes;
    assert_int_equal(total, 21638400);
    const cn_st_tensor *t = cn_safetensors_find(s, "model.embed_tokens.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, CN_ST_BF16);
    cn_safetensors_close(s);
}

#define T(dtype, shape, begin, end) \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static void test_invalid_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *words;
    } cases[] = {
        {"[]", 0, "f: the header is not a JSON object"},
        {"{", 0, "not JSON"},
        {"{\"a\":1}", 0, "tensor a: expected an object, got 1"},
        {"{\"a\":{}}", 0, "tensor a: dtype: missing"},
        {"{\"a\":" T("F12", "[1]", 0, 4) "}", 4, "dtype \"F12\" is not supported"},
        {"{\"a\":" T("F32", "4", 0, 4) "}", 4, "shape: expected an array"},
        {"{\"a\":" T("F32", "[-1]", 0, 4) "}", 4, "shape[0]: expected a size, got -1"},
        {"{\"a\":" T("F32", "[1.5]", 0, 4) "}", 4, "got 1.5"},
        {"{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "9 dimensions"},
        {"{\"a\":" T("F32", "[4294967296,4294967296]", 0, 4) "}", 4, "overflows 64 bits"},
        {"{\"a\":" T("F32", "[4611686018427387904]", 0, 0) "}", 0, "overflows 64 bits"},
        {"{\"a\":" T("F32", "[1]", 4, 0) "}", 4, "data_offsets [4, 0] are outside"},
        {"{\"a\":" T("F32", "[2]", 0, 8) "}", 4, "data_offsets [0, 8] are outside the 4 bytes"},
        {"{\"a\":" T("F32", "[1]", 9223372036854775803, 9223372036854775807) "}", 4,
         "are outside the 4 bytes"},
        {"{\"a\":" T("F32", "[1]", 0, 18446744073709551616) "}", 4, "two whole numbers"},
        {"{\"a\":" T("F32", "[1]", -4, 0) "}", 4, "two whole numbers"},
        {"{\"a\":" T("F32", "[3]", 0, 4) "}", 4, "span 4 bytes, but shape [3] of F32 has 12"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "two whole numbers"},
        {"{\"a\":" T("F32", "[1]", 0, 4) "}", 5,
         "tensors cover 4 bytes of data, but the file has 5"},
        {"{\"a\":" T("F32", "[1]", 0, 4) ",\"b\":" T("F32", "[1]", 2, 6) "}", 6,
         "tensor b: data from byte 2 overlaps tensor a, which ends at byte 4"},
        {"{\"a\":" T("F32", "[1]", 0, 4) ",\"b\":" T("F32", "[1]", 6, 10) "}", 10,
         "tensor b: bytes 4 to 6 before it belong to no tensor"},
        {"{\"a\":" T("F32", "[1]", 0, 4) ",\"a\":" T("F32", "[1]", 4, 8) "}", 8, "duplicate"},
        {"{\"a\\u001b[2J\":" T("F32", "[1]", 0, 4) "}", 4, "control character"},
        {"{\"\":" T("F32", "[1]", 0, 4) "}", 4, "a name of 0 bytes"},
        {"{\"\xff\":" T("F32", "[1]", 0, 4) "}", 4, "not UTF-8"},
        {"{\"a\":{\"dtype\":[[[1]]]}}", 0, "nested"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refusal(cases[i].header, cases[i].data_bytes, cases[i].words);
}

static void test_header_length(void **state)
{
    (void)state;
    cn_buf image = {0};
    assert_int_equal(cn_buf_add(&image, "\2\0\0\0\0\0\0", 7), CN_OK);
    expect_refusal_of(&image, "7 bytes are too few");
    cn_buf_clear(&image);
    tensor_file_raw(&image, "{}", 0);
    const uint64_t lies[] = {3, 1u << 20, UINT64_MAX, UINT64_MAX - 7, (uint64_t)INT64_MAX + 1};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        memcpy(image.data, &lies[i], sizeof lies[i]);
        expect_refusal_of(&image, "exceeds the 2 bytes that follow");
    }
    cn_buf_free(&image);
}

/* A valid file cut at any byte is an error. */
static void test_truncated_anywhere(void **state)
{
    (void)state;
    const float a[2] = {1, 2};
    tensor_file f = {0};
    tensor_file_add(&f, "a", "F32", 0, 2, a, sizeof a);
    cn_buf image = {0};
    tensor_file_image(&f, &image);
    for (size_t n = 0; n < image.len; n++) {
        cn_buf cut = {0};
        assert_int_equal(cn_buf_add(&cut, image.data, n), CN_OK);
        expect_refusal_of(&cut, "f: ");
        cn_buf_free(&cut);
    }
    cn_buf_free(&image);
    tensor_file_free(&f);
}

/* ---- folders ---- */

static char folder[64];

static int enter_folder(void **state)
{
    (void)state;
    make_folder(folder);
    return 0;
}

static int leave_folder(void **state)
{
    (void)state;
    remove_folder(folder);
    return 0;
}

static const char *in_folder(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_shard(const char *file, const char *tensor)
{
    const float one = 1;
    tensor_file f = {0};
    tensor_file_add(&f, tensor, "F32", 0, 1, &one, sizeof one);
    tensor_file_write(&f, in_folder(file));
    tensor_file_free(&f);
}

static void write_index(const char *text)
{
    write_file(in_folder("model.safetensors.index.json"), text, strlen(text));
}

static void expect_folder_refusal(cn_status status, const char *words)
{
    cn_safetensors *s;
    assert_int_equal(cn_safetensors_open(&s, folder), status);
    assert_null(s);
    if (!strstr(cn_last_error(), words)) fail_msg("\"%s\" lacks \"%s\"", cn_last_error(), words);
}

static void test_shards(void **state)
{
    (void)state;
    cn_safetensors *s;
    expect_folder_refusal(CN_ERR_IO, "expected model.safetensors or");
    write_shard("1.safetensors", "a");
    write_shard("2.safetensors", "b");
    write_index("{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}");
    assert_int_equal(cn_safetensors_open(&s, folder), CN_OK);
    assert_int_equal(cn_safetensors_count(s), 2);
    assert_non_null(strstr(cn_safetensors_find(s, "b")->file, "/2.safetensors"));
    cn_safetensors_close(s);

    write_index("{\"weight_map\":{\"a\":\"2.safetensors\",\"b\":\"1.safetensors\"}}");
    expect_folder_refusal(CN_ERR_MODEL, "index.json: tensor a is not in 2.safetensors");
    write_index("{\"weight_map\":{\"a\":\"1.safetensors\",\"c\":\"1.safetensors\"}}");
    expect_folder_refusal(CN_ERR_MODEL, "tensor c is not in 1.safetensors");
    write_index("{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"3.safetensors\"}}");
    expect_folder_refusal(CN_ERR_IO, "3.safetensors: No such file");
    write_shard("2.safetensors", "a");
    write_index("{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}");
    expect_folder_refusal(CN_ERR_MODEL, "tensor a: is also in");
}

static void test_hostile_index(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"[]", "not a JSON object"},
        {"{}", "weight_map: missing"},
        {"{\"weight_map\":[]}", "weight_map: expected an object"},
        {"{\"weight_map\":{}}", "names 0 files"},
        {"{\"weight_map\":{\"a\":1}}", "tensor a: expected a file name, got 1"},
        {"{\"weight_map\":{\"a\":\"../x\"}}", "expected a file name, got \"../x\""},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "expected a file name"},
        {"{\"weight_map\":{\"a\":\"\"}}", "expected a file name"},
        {"{\"weight_map\":{\"a\":\"x\\u001b\"}}", "got \"x\\x1b\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_index(cases[i].text);
        expect_folder_refusal(CN_ERR_MODEL, cases[i].words);
    }
}

static void test_odd_files(void **state)
{
    (void)state;
    write_file(in_folder("model.safetensors"), "", 0);
    expect_folder_refusal(CN_ERR_MODEL, "model.safetensors: 0 bytes are too few");
    remove(in_folder("model.safetensors"));
    assert_int_equal(mkfifo(in_folder("model.safetensors"), 0600), 0);
    expect_folder_refusal(CN_ERR_IO, "not a regular file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_bundled_checkpoint),
        cmocka_unit_test(test_invalid_headers),
        cmocka_unit_test(test_header_length),
        cmocka_unit_test(test_truncated_anywhere),
        cmocka_unit_test_setup_teardown(test_shards, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(test_hostile_index, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(test_odd_files, enter_folder, leave_folder),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
