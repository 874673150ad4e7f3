/* SPDX-License-Identifier: Apache-2.0
 *
 * Becoming the next runtime. The engine waits for this very process, so there is no fork; argv[0]
 * becomes the runtime's path (crun chooses its handler by it), all else stays as it came.
 */
#ifndef VGPU_LAUNCHER_RUNTIME_H
#define VGPU_LAUNCHER_RUNTIME_H

#include "text.h"

/* Execs `path`; returns only on failure, with errno. A path that leads back to the launcher fails
 * with ELOOP: it would call itself for ever. */
void runtime_exec(const char *path, char **argv);

/* Execs the first of the built-in places that can be; returns only when none can. */
void runtime_exec_found(char **argv);

/* Why an exec failed, in words that engines do not map to a meaning of their own. */
const char *runtime_failure(int error);

#endif
