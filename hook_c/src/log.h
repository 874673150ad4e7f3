// SPDX-License-Identifier: Apache-2.0
/* Messages go to the ring in the usage file; to stderr only in developer mode.
 *
 * Any thread may log at any time. Nothing is allocated. */
#ifndef VGPU_LOG_H
#define VGPU_LOG_H

#include "reason.h"
#include "vgpu_abi.h"

/* Where messages go from now on. `ring` may be NULL; a level above VGPU_RING_ERROR keeps stderr
 * silent. */
void log_start(struct vgpu_usage *ring, unsigned int stderr_level);

__attribute__((format(printf, 2, 3))) void log_write(unsigned int level, const char *format, ...);

#define log_debug(...) log_write(VGPU_RING_DEBUG, __VA_ARGS__)
#define log_warning(...) log_write(VGPU_RING_WARNING, __VA_ARGS__)
#define log_error(...) log_write(VGPU_RING_ERROR, __VA_ARGS__)

/* The one line on stderr of a cuInit that is refused: once a process, never under AT_SECURE. */
void log_refusal(const struct reason *reason);

#endif
