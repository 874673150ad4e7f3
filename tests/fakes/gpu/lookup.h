/* SPDX-License-Identifier: Apache-2.0
 *
 * Which function a name, a CUDA version and a stream variant stand for.
 */
#ifndef FAKE_GPU_LOOKUP_H
#define FAKE_GPU_LOOKUP_H

#include <stdbool.h>

#define LOOKUP_PER_THREAD_STREAM 2

typedef void (*lookup_function)(void);

/* The variant with the highest version that is not above `version`; NULL when there is none. */
lookup_function lookup_best(const char *base, int version, int flag);

/* Whether a driver of that version knows the name at all. */
bool lookup_known(const char *base, int version);

#endif
