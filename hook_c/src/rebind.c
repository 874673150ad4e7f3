// SPDX-License-Identifier: Apache-2.0
#include "rebind.h"

#include "driver.h"
#include "libc.h"
#include "sys.h"

#include <elf.h>
#include <errno.h>

#if defined(__x86_64__)
#define IS_REFERENCE(type)                                                                         \
	((type) == R_X86_64_JUMP_SLOT || (type) == R_X86_64_GLOB_DAT || (type) == R_X86_64_64)
#elif defined(__aarch64__)
#define IS_REFERENCE(type)                                                                         \
	((type) == R_AARCH64_JUMP_SLOT || (type) == R_AARCH64_GLOB_DAT || (type) == R_AARCH64_ABS64)
#endif

struct references {
	Elf64_Addr base;
	Elf64_Addr end;            /* of what the object has loaded */
	const Elf64_Rela *list[2]; /* the procedure linkage table's, and the others */
	size_t bytes[2];
};

/* glibc relocates the addresses in the dynamic section, other loaders do not. */
static const void *address_in(const struct references *found, Elf64_Addr address)
{
	return (const void *)(address < found->base ? found->base + address : address);
}

static void read_dynamic(const Elf64_Dyn *dynamic, struct references *found)
{
	for (; dynamic->d_tag != DT_NULL; dynamic++) {
		switch (dynamic->d_tag) {
		case DT_JMPREL:
			found->list[0] = address_in(found, dynamic->d_un.d_ptr);
			break;
		case DT_PLTRELSZ:
			found->bytes[0] = dynamic->d_un.d_val;
			break;
		case DT_RELA:
			found->list[1] = address_in(found, dynamic->d_un.d_ptr);
			break;
		case DT_RELASZ:
			found->bytes[1] = dynamic->d_un.d_val;
			break;
		default:
			break;
		}
	}
}

/* The word may lie in a page that the loader made read-only when it had bound everything. Whether
 * it has done so yet cannot be seen from here, and it must not find a page read-only that it still
 * writes to. So the kernel is asked to write the word: where it may not, the loader is done. */
static void write_word(uint64_t *word, uint64_t value)
{
	uintptr_t page = libc_page_bytes();
	uintptr_t start = (uintptr_t)word / page * page;
	int ends[2] = {-1, -1};

	if (sys_pipe(ends) != 0) {
		__atomic_store_n(&driver_unpatched, 1, __ATOMIC_RELAXED);
		return;
	}
	if (sys_write(ends[1], &value, sizeof(value)) == (long)sizeof(value) &&
	    sys_read(ends[0], word, sizeof(value)) == -EFAULT &&
	    sys_protect(start, start + page, PROT_READ | PROT_WRITE) == 0) {
		__atomic_store_n(word, value, __ATOMIC_RELEASE);
		sys_protect(start, start + page, PROT_READ);
	}
	sys_close(ends[0]);
	sys_close(ends[1]);
}

/* Its value tells what a reference was bound to; names are not looked at, of which a big program
 * has a hundred thousand. Those of the driver to itself stay: it answers cuGetProcAddress with
 * them. */
static void rebind(const struct references *found, const Elf64_Rela *reference)
{
	uint64_t *word = (uint64_t *)(found->base + reference->r_offset);
	uint64_t value = __atomic_load_n(word, __ATOMIC_RELAXED);
	/* NOLINTNEXTLINE(performance-no-int-to-ptr) */
	const void *hook = driver_hook_of((const void *)value);

	if (hook != NULL && (value < found->base || value >= found->end))
		write_word(word, (uint64_t)(uintptr_t)hook);
}

int rebind_object(struct dl_phdr_info *info, size_t size, void *data)
{
	struct references found = {.base = info->dlpi_addr};
	const Elf64_Dyn *dynamic = NULL;

	(void)size;
	(void)data;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const Elf64_Phdr *header = &info->dlpi_phdr[i];
		Elf64_Addr end = info->dlpi_addr + header->p_vaddr + header->p_memsz;

		if (header->p_type == PT_DYNAMIC)
			dynamic = (const void *)(info->dlpi_addr + header->p_vaddr);
		if (header->p_type == PT_LOAD && end > found.end)
			found.end = end;
	}
	if (dynamic == NULL)
		return 0;
	read_dynamic(dynamic, &found);
	for (int kind = 0; kind < 2; kind++)
		for (size_t i = 0;
		     found.list[kind] != NULL && i < found.bytes[kind] / sizeof(Elf64_Rela); i++) {
			const Elf64_Rela *reference = &found.list[kind][i];

			if (reference->r_offset % sizeof(uint64_t) == 0 &&
			    IS_REFERENCE(ELF64_R_TYPE(reference->r_info)) &&
			    ELF64_R_SYM(reference->r_info) != 0)
				rebind(&found, reference);
		}
	return 0;
}
