/* gpu_uuid.h - the UUID of a GPU, by which nvidia-smi and schedulers know it: an ordinal is only
 * of this process (CUDA_VISIBLE_DEVICES).
 *
 * Owner: the engine. Thread: any. Stage: start, after the backend has loaded the driver. */
#pragma once

#include <stdint.h>

enum { CN_GPU_UUID_BYTES = 48 };

/* Writes "GPU-ca95b138-48bf-5fd5-98a6-0c7b3f3a6f2b", or "MIG-" for a MIG instance. Writes "" if the
 * driver does not tell. */
void cn_gpu_uuid(uint32_t ordinal, char text[CN_GPU_UUID_BYTES]);

/* The text of the 16 bytes of a UUID. */
void cn_gpu_uuid_text(const char *kind, const uint8_t bytes[16], char text[CN_GPU_UUID_BYTES]);
