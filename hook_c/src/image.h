// SPDX-License-Identifier: Apache-2.0
/* The symbol table of a loaded object, read in place. Calls nothing of libc's. */
#ifndef VGPU_IMAGE_H
#define VGPU_IMAGE_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

struct image {
	Elf64_Addr base;
	const char *path;
	const char *soname; /* empty: none */
	const Elf64_Sym *symbols;
	const char *strings;
	const uint16_t *versions; /* NULL: none */
	const uint32_t *hash;     /* DT_GNU_HASH */
};

/* False for an object without such a table. */
bool image_read(Elf64_Addr base, const char *path, const Elf64_Dyn *dynamic, struct image *image);
bool image_of(const struct dl_phdr_info *info, struct image *image);

/* A definition of the name: the default version if there are several. NULL if there is none. */
const Elf64_Sym *image_find(const struct image *image, const char *name);
void *image_address(const struct image *image, const char *name);

#endif
