// SPDX-License-Identifier: Apache-2.0
#include "driver.h"

#include "image.h"
#include "libc.h"
#include "rebind.h"
#include "sys.h"
#include "tenant.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>

struct driver driver;
uint32_t driver_found[DRIVER_LIBRARIES];
uint32_t driver_unpatched;

static const char *const sonames[DRIVER_LIBRARIES] = {
	[DRIVER_CUDA] = "libcuda.so.1",
	[DRIVER_NVML] = "libnvidia-ml.so.1",
};

/* Real address → row + 1, open addressing. Twice as many places as there can be rows. */
#define HOOK_PLACES 2048
static uint16_t hook_places[HOOK_PLACES];

/* Pages of a symbol table, while they may be written. */
struct patch {
	Elf64_Addr start;
	Elf64_Addr end;
	int was;
};

struct search {
	enum driver_library library;
	bool only_path;
	bool found;
	char path[256];
};

static size_t place_of(const void *real)
{
	return ((uintptr_t)real >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 53;
}

_Static_assert(HOOK_PLACES == 1 << (64 - 53), "place_of takes eleven bits");

/* All threads that fill the table do it in the same order, so all choose the same places. */
static void remember_hook(size_t row)
{
	size_t place = place_of(*driver_names[row].real);
	uint16_t value = (uint16_t)(row + 1);

	for (;; place = (place + 1) % HOOK_PLACES) {
		uint16_t there = __atomic_load_n(&hook_places[place], __ATOMIC_RELAXED);

		if (there == value)
			return;
		if (there == 0)
			break;
	}
	__atomic_store_n(&hook_places[place], value, __ATOMIC_RELAXED);
}

/* The loader's own table of the driver's symbols is made to name our hooks. So they are also found
 * by an object that has bound libc's dlsym past us (RTLD_DEEPBIND), under any name and path of the
 * driver, and by whatever the loader binds to the driver later.
 *
 * The table lies in a segment that the loader has mapped read-only, private to this process. It is
 * left alone if it lies beside code: a page that was written is never made executable again.
 * All under the loader's lock, which dl_iterate_phdr holds: nobody else changes the protection. */
static bool open_table(const struct dl_phdr_info *info, const struct image *image,
		       struct patch *patch)
{
	Elf64_Addr table = (Elf64_Addr)image->symbols;

	for (int i = 0; i < info->dlpi_phnum; i++) {
		const Elf64_Phdr *header = &info->dlpi_phdr[i];
		Elf64_Addr start = info->dlpi_addr + header->p_vaddr;
		Elf64_Addr page = libc_page_bytes();

		if (header->p_type != PT_LOAD || table < start || table >= start + header->p_memsz)
			continue;
		if (page == 0 || (header->p_flags & PF_X) != 0)
			return false;
		patch->was = (header->p_flags & PF_R ? PROT_READ : 0) |
			     (header->p_flags & PF_W ? PROT_WRITE : 0);
		/* The names come behind the symbols, and the end of the table is told nowhere. */
		patch->start = table / page * page;
		patch->end = start + header->p_memsz;
		if ((Elf64_Addr)image->strings > table && (Elf64_Addr)image->strings < patch->end)
			patch->end = (Elf64_Addr)image->strings;
		patch->end = (patch->end + page - 1) / page * page;
		return sys_protect(patch->start, patch->end, PROT_READ | PROT_WRITE) == 0;
	}
	return false;
}

static void close_table(const struct patch *patch)
{
	sys_protect(patch->start, patch->end, patch->was);
}

/* A symbol that leads to the hook already was read before, and the real address with it. */
static bool is_patched(const struct image *image, const Elf64_Sym *symbol, const void *hook)
{
	return hook != NULL && symbol != NULL && image->base + symbol->st_value == (Elf64_Addr)hook;
}

static void resolve(const struct image *image, enum driver_library library)
{
	for (size_t row = 0; row < driver_names_count; row++) {
		const struct driver_name *name = &driver_names[row];

		if (name->library != library)
			continue;

		const Elf64_Sym *symbol = image_find(image, name->symbol);
		void *real = symbol == NULL ? NULL : (void *)(image->base + symbol->st_value);

		if (is_patched(image, symbol, name->hook))
			continue;
		__atomic_store_n(name->real, real, __ATOMIC_RELAXED);
		if (real != NULL && name->hook != NULL)
			remember_hook(row);
	}
}

static void patch_table(const struct dl_phdr_info *info, const struct image *image,
			enum driver_library library)
{
	struct patch patch;

	if (!open_table(info, image, &patch)) {
		__atomic_store_n(&driver_unpatched, 1, __ATOMIC_RELAXED);
		return;
	}
	for (size_t row = 0; row < driver_names_count; row++) {
		const struct driver_name *name = &driver_names[row];

		if (name->library != library || name->hook == NULL || *name->real == NULL)
			continue;

		Elf64_Sym *symbol = (Elf64_Sym *)image_find(image, name->symbol);
		Elf64_Addr entry = (Elf64_Addr)symbol;

		if (symbol != NULL && entry >= patch.start && entry + sizeof(*symbol) <= patch.end)
			__atomic_store_n(&symbol->st_value, (Elf64_Addr)name->hook - image->base,
					 __ATOMIC_RELEASE);
	}
	close_table(&patch);
}

static int visit_driver(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *search = data;
	struct image image;

	(void)size;
	if (!image_of(info, &image) || strcmp(image.soname, sonames[search->library]) != 0)
		return 0;
	strncpy(search->path, image.path, sizeof(search->path) - 1);
	search->found = true;
	if (search->only_path)
		return 1;
	resolve(&image, search->library);
	if (!tenant_is_inert())
		patch_table(info, &image, search->library);
	return 1;
}

/* 1: the loaded library will not be unloaded any more. */
static uint32_t kept[DRIVER_LIBRARIES];

bool driver_search(enum driver_library library)
{
	struct search search = {.library = library};

	libc_each_object(visit_driver, &search);
	if (!search.found)
		return false;
	if (!tenant_is_inert())
		libc_each_object(rebind_object, NULL);
	/* Before libc is ready nobody knows whether there are limits: look again then. */
	if (tenant_is_known())
		__atomic_store_n(&driver_found[library], 1, __ATOMIC_RELEASE);
	return true;
}

/* Two threads may do it at the same time. */
void driver_keep(enum driver_library library)
{
	struct search search = {.library = library, .only_path = true};

	if (__atomic_load_n(&kept[library], __ATOMIC_RELAXED) != 0 || !libc_is_ready())
		return;
	libc_each_object(visit_driver, &search);
	if (!search.found)
		return;

	bool is_whole = search.path[sizeof(search.path) - 2] == '\0';

	if (libc_keep_object(is_whole ? search.path : sonames[library]))
		__atomic_store_n(&kept[library], 1, __ATOMIC_RELAXED);
}

/* Objects that were ever loaded, when this was last looked at. */
static uint64_t seen_adds;

static int visit_first(struct dl_phdr_info *info, size_t size, void *data)
{
	uint64_t *adds = data;

	(void)size;
	*adds = info->dlpi_adds;
	return 1;
}

void driver_notice(void)
{
	uint64_t adds = 0;
	uint32_t found = 1;

	for (int library = 0; library < DRIVER_LIBRARIES; library++)
		found &= __atomic_load_n(&driver_found[library], __ATOMIC_RELAXED);
	if (found != 0 || libc_is_loading())
		return;
	libc_each_object(visit_first, &adds);
	if (adds == __atomic_load_n(&seen_adds, __ATOMIC_RELAXED))
		return;
	__atomic_store_n(&seen_adds, adds, __ATOMIC_RELAXED);
	for (int library = 0; library < DRIVER_LIBRARIES; library++)
		driver_ready((enum driver_library)library);
}

const struct driver_name *driver_name_of(const char *symbol)
{
	size_t low = 0;
	size_t high = driver_names_count;

	while (low < high) {
		size_t middle = (low + high) / 2;
		int order = strcmp(symbol, driver_names[middle].symbol);

		if (order == 0)
			return &driver_names[middle];
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

void *driver_hook_of(const void *real)
{
	for (size_t place = place_of(real);; place = (place + 1) % HOOK_PLACES) {
		uint16_t row = __atomic_load_n(&hook_places[place], __ATOMIC_RELAXED);

		if (row == 0)
			return NULL;
		if (*driver_names[row - 1].real == real)
			return driver_names[row - 1].hook;
	}
}

struct next_search {
	const char *symbol;
	bool behind_us;
	void *address;
};

/* An address that only this object holds. */
static bool is_own(const struct dl_phdr_info *info)
{
	Elf64_Addr here = (Elf64_Addr)driver_names;

	for (int i = 0; i < info->dlpi_phnum; i++) {
		const Elf64_Phdr *header = &info->dlpi_phdr[i];
		Elf64_Addr start = info->dlpi_addr + header->p_vaddr;

		if (header->p_type == PT_LOAD && here >= start && here < start + header->p_memsz)
			return true;
	}
	return false;
}

static int visit_next(struct dl_phdr_info *info, size_t size, void *data)
{
	struct next_search *search = data;
	struct image image;

	(void)size;
	if (!search->behind_us) {
		search->behind_us = is_own(info);
		return 0;
	}
	if (image_of(info, &image))
		search->address = image_address(&image, search->symbol);
	return search->address != NULL;
}

void *driver_next(const char *symbol)
{
	struct next_search search = {.symbol = symbol};

	libc_each_object(visit_next, &search);
	return search.address;
}

struct address_search {
	Elf64_Addr address;
	bool is_of_driver;
};

static bool is_driver(const struct dl_phdr_info *info)
{
	struct image image;

	if (!image_of(info, &image))
		return false;
	for (int library = 0; library < DRIVER_LIBRARIES; library++)
		if (strcmp(image.soname, sonames[library]) == 0)
			return true;
	return false;
}

static int visit_address(struct dl_phdr_info *info, size_t size, void *data)
{
	struct address_search *search = data;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const Elf64_Phdr *header = &info->dlpi_phdr[i];
		Elf64_Addr start = info->dlpi_addr + header->p_vaddr;

		if (header->p_type == PT_LOAD && search->address >= start &&
		    search->address < start + header->p_memsz) {
			search->is_of_driver = is_driver(info);
			return 1;
		}
	}
	return 0;
}

bool driver_is_another(const void *address)
{
	struct address_search search = {.address = (Elf64_Addr)address};

	return libc_each_object(visit_address, &search) == 0 || search.is_of_driver;
}

struct own_search {
	const char *folder;
	bool is_in;
};

static int visit_own(struct dl_phdr_info *info, size_t size, void *data)
{
	struct own_search *search = data;
	size_t length = strlen(search->folder);

	(void)size;
	if (!is_own(info))
		return 0;
	search->is_in = strncmp(info->dlpi_name, search->folder, length) == 0 &&
			info->dlpi_name[length] == '/';
	return 1;
}

bool driver_own_path_is_in(const char *folder)
{
	struct own_search search = {.folder = folder};

	libc_each_object(visit_own, &search);
	return search.is_in;
}
