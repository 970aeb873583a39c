/* checkpoint_dir.c - see checkpoint_dir.h. */
#include "engine/checkpoint/checkpoint_dir.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

static const char convert[] =
    "convert it to a directory of safetensors with transformers, as examples/convert_gguf.py does: "
    "AutoModelForCausalLM.from_pretrained(DIR, gguf_file=NAME)";

static bool ends_in_gguf(const char *name)
{
    const size_t n = strlen(name);
    return n > 5 && strcmp(name + n - 5, ".gguf") == 0;
}

/* A split file may have no magic number, and a renamed file no suffix. */
static bool is_gguf(const char *path)
{
    char magic[4] = {0};
    FILE *f = fopen(path, "rb");
    const bool has_magic = f && fread(magic, 1, sizeof magic, f) == sizeof magic &&
                           memcmp(magic, "GGUF", sizeof magic) == 0;
    if (f) fclose(f);
    return has_magic || ends_in_gguf(path);
}

static cn_status refuse_file(const char *path)
{
    if (is_gguf(path))
        return cn_fail(CN_ERR_MODEL, "--model %s is a GGUF file, which is not supported: %s", path,
                       convert);
    return cn_fail(CN_ERR_MODEL,
                   "--model %s is a file: expected the directory of a checkpoint, with config.json",
                   path);
}

cn_status cn_checkpoint_dir_refuse_gguf(const char *dir)
{
    char name[256] = "";
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (ends_in_gguf(e->d_name) && (!*name || strcmp(e->d_name, name) < 0))
            snprintf(name, sizeof name, "%s", e->d_name);
    if (d) closedir(d);
    if (!*name) return CN_OK;
    return cn_fail(CN_ERR_MODEL, "--model %s has GGUF weights, %s, which are not supported: %s",
                   dir, name, convert);
}

cn_status cn_checkpoint_dir_check(const char *dir)
{
    struct stat s;
    cn_buf config = {0};
    if (stat(dir, &s) != 0)
        return cn_fail(CN_ERR_IO,
                       "--model %s: no such directory: expected a downloaded checkpoint with "
                       "config.json",
                       dir);
    if (!S_ISDIR(s.st_mode)) return refuse_file(dir);
    CN_TRY(cn_buf_addf(&config, "%s/config.json", dir));
    const bool has_config = access(config.data, F_OK) == 0;
    cn_buf_free(&config);
    return has_config ? CN_OK : cn_checkpoint_dir_refuse_gguf(dir);
}
