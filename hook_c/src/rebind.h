// SPDX-License-Identifier: Apache-2.0
/* References to the driver that the loader has bound before this library had seen the driver: those
 * of an object loaded with RTLD_DEEPBIND, which looks into what it needs before it looks here. */
#ifndef VGPU_REBIND_H
#define VGPU_REBIND_H

#include <link.h>
#include <stddef.h>

/* For dl_iterate_phdr, when the entry points of a library have become known; takes no data. */
int rebind_object(struct dl_phdr_info *info, size_t size, void *data);

#endif
