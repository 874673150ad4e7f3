// SPDX-License-Identifier: Apache-2.0
#include "image.h"

#include <elf.h>
#include <string.h>

/* glibc relocates the addresses in the dynamic section, other loaders and the vDSO do not. */
static const void *address_in(const struct image *image, Elf64_Addr address)
{
	return (const void *)(address < image->base ? image->base + address : address);
}

bool image_read(Elf64_Addr base, const char *path, const Elf64_Dyn *dynamic, struct image *image)
{
	Elf64_Addr soname = 0;

	memset(image, 0, sizeof(*image));
	image->base = base;
	image->path = path;
	if (dynamic == NULL)
		return false;
	for (; dynamic->d_tag != DT_NULL; dynamic++) {
		switch (dynamic->d_tag) {
		case DT_SYMTAB:
			image->symbols = address_in(image, dynamic->d_un.d_ptr);
			break;
		case DT_STRTAB:
			image->strings = address_in(image, dynamic->d_un.d_ptr);
			break;
		case DT_VERSYM:
			image->versions = address_in(image, dynamic->d_un.d_ptr);
			break;
		case DT_GNU_HASH:
			image->hash = address_in(image, dynamic->d_un.d_ptr);
			break;
		case DT_SONAME:
			soname = dynamic->d_un.d_val;
			break;
		default:
			break;
		}
	}
	if (image->symbols == NULL || image->strings == NULL || image->hash == NULL)
		return false;
	image->soname = soname == 0 ? "" : image->strings + soname;
	return true;
}

bool image_of(const struct dl_phdr_info *info, struct image *image)
{
	const Elf64_Dyn *dynamic = NULL;

	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			dynamic = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	return image_read(info->dlpi_addr, info->dlpi_name, dynamic, image);
}

static uint32_t gnu_hash(const char *name)
{
	uint32_t hash = 5381;

	for (; *name != '\0'; name++)
		hash = hash * 33 + (unsigned char)*name;
	return hash;
}

const Elf64_Sym *image_find(const struct image *image, const char *name)
{
	/* Layout of DT_GNU_HASH: four words, the filter, the buckets, the chains. */
	uint32_t bucket_count = image->hash[0];
	uint32_t first = image->hash[1];
	uint32_t filter_words = image->hash[2];
	const uint32_t *buckets =
		image->hash + 4 + filter_words * (sizeof(Elf64_Addr) / sizeof(uint32_t));
	const uint32_t *chains = buckets + bucket_count;
	uint32_t hash = gnu_hash(name);
	const Elf64_Sym *hidden = NULL;

	if (bucket_count == 0)
		return NULL;

	uint32_t index = buckets[hash % bucket_count];

	if (index < first)
		return NULL;
	for (;; index++) {
		const Elf64_Sym *symbol = &image->symbols[index];
		uint32_t chain = chains[index - first];

		if ((chain | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
		    strcmp(image->strings + symbol->st_name, name) == 0) {
			if (image->versions == NULL || (image->versions[index] & 0x8000) == 0)
				return symbol;
			hidden = symbol;
		}
		if (chain & 1)
			return hidden;
	}
}

void *image_address(const struct image *image, const char *name)
{
	const Elf64_Sym *symbol = image_find(image, name);

	return symbol == NULL ? NULL : (void *)(image->base + symbol->st_value);
}
