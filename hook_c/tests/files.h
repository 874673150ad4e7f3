// SPDX-License-Identifier: Apache-2.0
/* The two files of a container, made as the agent makes them, in a folder of the test's own. */
#ifndef VGPU_HOOK_FILES_H
#define VGPU_HOOK_FILES_H

#include "vgpu_abi.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

struct files {
	char usage_path[64];
	char limits_path[64];
	struct vgpu_usage *usage;
	struct vgpu_limits *limits;
};

/* One card with so much memory. */
void files_make(struct files *files, uint64_t memory_bytes);
void files_remove(struct files *files);

/* Runs the function in a child and returns its PID; the child ends with the result as its status.
 */
pid_t spawn(int (*run)(const struct files *), const struct files *files);

/* The status of a child that ended by itself, -signal of one that was killed. */
int collect(pid_t pid);

/* The text of a number that is a macro. */
#define TEXT_OF(words) #words
#define NUMBER(macro) TEXT_OF(macro)

#endif
