/* gpu_uuid.c - see gpu_uuid.h. Asks the driver, which only the CUDA backend links. */
#include "engine/start/gpu_uuid.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Functions of the driver API. 0 is CUDA_SUCCESS. */
typedef int (*device_get_fn)(int *device, int ordinal);
typedef int (*uuid_fn)(uint8_t bytes[16], int device);

/* dlsym() returns an object pointer, also for a function. */
typedef union entry {
    void *object;
    device_get_fn device_get;
    uuid_fn uuid;
} entry;

void cn_gpu_uuid_text(const char *kind, const uint8_t bytes[16], char text[CN_GPU_UUID_BYTES])
{
    int n = snprintf(text, CN_GPU_UUID_BYTES, "%.4s", kind);
    for (int i = 0; i < 16; i++) {
        const bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        n += snprintf(text + n, (size_t)(CN_GPU_UUID_BYTES - n), dash ? "-%02x" : "%02x",
                      (unsigned)bytes[i]);
    }
}

void cn_gpu_uuid(uint32_t ordinal, char text[CN_GPU_UUID_BYTES])
{
    int device;
    uint8_t of_gpu[16], of_instance[16];
    text[0] = '\0';
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!driver) return;
    const entry get = {dlsym(driver, "cuDeviceGet")};
    const entry gpu = {dlsym(driver, "cuDeviceGetUuid")};
    const entry instance = {dlsym(driver, "cuDeviceGetUuid_v2")};
    const bool told = get.object && gpu.object && instance.object &&
                      get.device_get(&device, (int)ordinal) == 0 && gpu.uuid(of_gpu, device) == 0 &&
                      instance.uuid(of_instance, device) == 0;
    dlclose(driver);
    if (!told) return;
    const bool is_mig = memcmp(of_gpu, of_instance, sizeof of_gpu) != 0;
    cn_gpu_uuid_text(is_mig ? "MIG" : "GPU", of_instance, text);
}
