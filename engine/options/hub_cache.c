/* hub_cache.c - finds the checkpoint of a name such as Qwen/Qwen3-8B in the Hugging Face cache:
 *
 *   <cache>/models--Qwen--Qwen3-8B/refs/main                 the commit of the branch
 *   <cache>/models--Qwen--Qwen3-8B/snapshots/<commit>/       its files
 *
 * See cn_config_find_models in options.h. */
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/options/option_value.h"

enum { COMMIT_MAX_BYTES = 64 };

static bool is_directory(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

/* Whether the text has the form of a repository: two names with a slash between them. */
static bool is_repository(const char *text)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    const size_t org = strspn(text, allowed);
    if (org == 0 || text[org] != '/' || text[0] == '.') return false;
    const char *name = text + org + 1;
    const size_t n = strspn(name, allowed);
    return n > 0 && name[n] == '\0' && name[0] != '.';
}

/* The commit in refs/main; false without one. */
static bool read_ref(const char *folder, char commit[COMMIT_MAX_BYTES + 1])
{
    cn_buf path = {0};
    FILE *f = NULL;
    if (cn_buf_addf(&path, "%s/refs/main", folder) == CN_OK) f = fopen(path.data, "r");
    const size_t n = f ? fread(commit, 1, COMMIT_MAX_BYTES, f) : 0;
    if (f) fclose(f);
    cn_buf_free(&path);
    commit[n] = '\0';
    commit[strspn(commit, "0123456789abcdef")] = '\0';
    return *commit != '\0';
}

/* The only snapshot; false if there is none, or more than one. */
static bool find_only(const char *folder, char commit[COMMIT_MAX_BYTES + 1])
{
    cn_buf path = {0};
    DIR *dir = NULL;
    uint32_t n = 0;
    if (cn_buf_addf(&path, "%s/snapshots", folder) == CN_OK) dir = opendir(path.data);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (e->d_name[0] == '.' || strlen(e->d_name) > COMMIT_MAX_BYTES) continue;
        snprintf(commit, COMMIT_MAX_BYTES + 1, "%.*s", COMMIT_MAX_BYTES, e->d_name);
        n++;
    }
    if (dir) closedir(dir);
    cn_buf_free(&path);
    return n == 1;
}

/* Appends the directory of the snapshot; nothing if the cache has none. */
static cn_status find_snapshot(cn_buf *out, const char *cache, const char *name)
{
    cn_buf folder = {0};
    const char *slash = strchr(name, '/');
    char commit[COMMIT_MAX_BYTES + 1];
    CN_TRY(cn_buf_addf(&folder, "%s/models--%.*s--%s", cache, (int)(slash - name), name,
                       slash + 1));
    cn_status status = CN_OK;
    if (read_ref(folder.data, commit) || find_only(folder.data, commit))
        status = cn_buf_addf(out, "%s/snapshots/%s", folder.data, commit);
    if (status == CN_OK && out->len && !is_directory(out->data)) cn_buf_clear(out);
    cn_buf_free(&folder);
    return status;
}

static cn_status find_model(char **field, const char *option)
{
    const char *name = *field;
    cn_buf cache = {0}, path = {0};
    /* The loader reports a missing directory, or a file. */
    if (!name || access(name, F_OK) == 0 || !is_repository(name)) return CN_OK;
    cn_status status = cn_hub_cache_dir(&cache);
    if (status == CN_OK && cache.len) status = find_snapshot(&path, cache.data, name);
    if (status == CN_OK && path.len == 0)
        status = cn_fail(CN_ERR_IO,
                         "--%s %s: no such directory, and not in the Hugging Face cache %s; to "
                         "download it: hf download %s (from pip install huggingface_hub)",
                         option, name, cache.len ? cache.data : "", name);
    if (status == CN_OK) {
        cn_free(*field);
        *field = path.data;
        path.data = NULL;
    }
    cn_free(path.data);
    cn_buf_free(&cache);
    return status;
}

cn_status cn_config_find_models(cn_config *c)
{
    char *name = c->model ? cn_strdup(c->model) : NULL;
    if (c->model && !name) return cn_fail(CN_ERR_MEMORY, "out of memory for the name of a model");
    cn_status status = find_model(&c->model, "model");
    if (status == CN_OK) status = find_model(&c->tokenizer, "tokenizer");
    if (status == CN_OK && c->tokenizer && !is_directory(c->tokenizer))
        status = cn_fail(CN_ERR_IO,
                         "--tokenizer %s: no such directory: expected one with tokenizer.json",
                         c->tokenizer);
    /* Responses have the name that the user gave, not the path of the cache. */
    if (status == CN_OK && name && strcmp(name, c->model) != 0 && !c->served_model_name) {
        c->served_model_name = name;
        name = NULL;
    }
    cn_free(name);
    return status;
}
