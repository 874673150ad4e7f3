// SPDX-License-Identifier: Apache-2.0
/* A program may read errno after a call of the driver: nothing of ours changes it. */
#ifndef VGPU_KEEP_ERRNO_H
#define VGPU_KEEP_ERRNO_H

#include <errno.h>

static inline void keep_errno_restore(const int *kept)
{
	errno = *kept;
}

/* The scope in which it stands ends with the errno it began with. */
#define KEEP_ERRNO()                                                                               \
	__attribute__((cleanup(keep_errno_restore), unused)) const int kept_errno = errno

#endif
