/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's own function under a name, whatever a preloaded library answers to a look-up: read
 * from the symbol table of the driver's file, which nobody rewrites.
 */
#ifndef BENCH_GPU_REAL_H
#define BENCH_GPU_REAL_H

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct real_driver {
	Elf64_Addr base;
	const char *path;
};

static inline int real_visit(struct dl_phdr_info *info, size_t size, void *data)
{
	struct real_driver *found = data;
	const char *name = strrchr(info->dlpi_name, '/');

	(void)size;
	if (name == NULL || strncmp(name, "/libcuda.so", 11) != 0)
		return 0;
	found->base = info->dlpi_addr;
	found->path = info->dlpi_name;
	return 1;
}

static inline const char *real_file(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat status;
	void *file = MAP_FAILED;

	if (fd >= 0 && fstat(fd, &status) == 0)
		file = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (fd >= 0)
		close(fd);
	return file == MAP_FAILED ? NULL : file;
}

/* NULL: no such symbol, or no driver is loaded. */
static inline void *real_function(const char *name)
{
	static struct real_driver loaded;
	static const char *file;

	if (file == NULL && dl_iterate_phdr(real_visit, &loaded) != 0)
		file = real_file(loaded.path);
	if (file == NULL)
		return NULL;

	const Elf64_Ehdr *header = (const void *)file;
	const Elf64_Shdr *sections = (const void *)(file + header->e_shoff);

	for (unsigned int i = 0; i < header->e_shnum; i++) {
		const Elf64_Sym *symbols = (const void *)(file + sections[i].sh_offset);

		if (sections[i].sh_type != SHT_DYNSYM)
			continue;

		const char *names = file + sections[sections[i].sh_link].sh_offset;

		for (size_t n = 0; n < sections[i].sh_size / sizeof(*symbols); n++)
			if (symbols[n].st_shndx != SHN_UNDEF &&
			    strcmp(names + symbols[n].st_name, name) == 0)
				return (void *)(loaded.base + symbols[n].st_value);
	}
	return NULL;
}

#endif
