/* sanitizer.h - sizes of a test by the sanitizer it is built with: under one it runs 3 to 30 times
 * longer. */
#pragma once

/* A constant: the first argument without a sanitizer, the second under the address sanitizer, the
 * third under the thread sanitizer. */
#if defined(__SANITIZE_THREAD__)
#define BY_SANITIZER(none, address, thread) (thread)
#elif defined(__SANITIZE_ADDRESS__)
#define BY_SANITIZER(none, address, thread) (address)
#else
#define BY_SANITIZER(none, address, thread) (none)
#endif
