/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules, libraries and what is found in them. A library is a module that belongs to no context.
 */
#include "module.h"
#include "context.h"
#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULE_MAGIC 0x4d4f4455
#define FUNCTION_MAGIC 0x46554e43
#define IMAGE_MARK "fakegpu\n"
#define DEFAULT_NS 1000

struct global {
	char name[64];
	CUdeviceptr address;
	uint64_t bytes;
	struct global *next;
};

struct module {
	uint32_t magic;
	struct function *functions;
	struct global *globals;
};

bool function_valid(const struct function *function)
{
	return function != NULL && function->magic == FUNCTION_MAGIC;
}

uint64_t function_duration_ns(const struct function *function, void *const *parameters)
{
	if (function->duration_is_parameter && parameters != NULL && parameters[0] != NULL)
		return *(const uint64_t *)parameters[0];
	return function->duration_ns;
}

static bool module_valid(const struct module *module)
{
	return module != NULL && module->magic == MODULE_MAGIC;
}

/* --- what a name says ----------------------------------------------------------------------- */

static uint64_t unit_ns(const char *unit)
{
	if (strncmp(unit, "ns", 2) == 0)
		return 1;
	if (strncmp(unit, "us", 2) == 0)
		return 1000;
	if (strncmp(unit, "ms", 2) == 0)
		return 1000000;
	return unit[0] == 's' ? 1000000000 : 0;
}

static void read_name(struct function *function)
{
	const char *busy = strstr(function->name, "busy_");
	const char *local = strstr(function->name, "_local");
	char *end = NULL;

	function->duration_ns = DEFAULT_NS;
	if (busy != NULL) {
		busy += strlen("busy_");
		function->duration_is_parameter = strncmp(busy, "param", 5) == 0;
		uint64_t number = strtoull(busy, &end, 10);
		if (end != busy)
			function->duration_ns = number * unit_ns(end);
	}
	if (local != NULL)
		function->local_bytes = strtoull(local + strlen("_local"), NULL, 10);
}

static CUresult get_function(const char *function, struct function **out, struct module *module,
			     const char *name)
{
	CUresult status = enter(function, out != NULL && name != NULL && name[0] != '\0');
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (!module_valid(module))
		return CUDA_ERROR_INVALID_HANDLE;
	if (strncmp(name, "missing", 7) == 0 || strlen(name) >= sizeof(module->functions->name))
		return CUDA_ERROR_NOT_FOUND;
	struct function *found = module->functions;
	while (found != NULL && strcmp(found->name, name) != 0)
		found = found->next;
	if (found == NULL) {
		found = calloc(1, sizeof(*found));
		if (found == NULL)
			return CUDA_ERROR_OUT_OF_MEMORY;
		found->magic = FUNCTION_MAGIC;
		found->module = module;
		(void)snprintf(found->name, sizeof(found->name), "%s", name);
		read_name(found);
		found->next = module->functions;
		module->functions = found;
	}
	*out = found;
	return CUDA_SUCCESS;
}

/* --- loading -------------------------------------------------------------------------------- */

static void unload(struct module *module)
{
	while (module->globals != NULL) {
		struct global *global = module->globals;
		module->globals = global->next;
		struct region *region = memory_find(global->address);
		if (region != NULL && region->base == global->address)
			memory_release(region);
		free(global);
	}
	/* Handles stay readable, but name nothing any more. */
	for (struct function *f = module->functions; f != NULL; f = f->next)
		f->magic = 0;
	module->magic = 0;
}

static CUresult add_global(struct module *module, struct context *context, const char *line)
{
	struct global *global = calloc(1, sizeof(*global));
	unsigned long long bytes = 0;

	if (global == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	/* NOLINTNEXTLINE(cert-err34-c): a test's own text */
	if (sscanf(line, "global %63s %llu", global->name, &bytes) != 2 || bytes == 0) {
		free(global);
		return CUDA_ERROR_INVALID_IMAGE;
	}
	struct region *region = memory_allocate(context, bytes);
	if (region == NULL) {
		free(global);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	global->address = region->base;
	global->bytes = bytes;
	global->next = module->globals;
	module->globals = global;
	return CUDA_SUCCESS;
}

static CUresult load(struct context *context, const void *image, struct module **out)
{
	struct module *module = calloc(1, sizeof(*module));
	CUresult status = CUDA_SUCCESS;

	if (module == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	module->magic = MODULE_MAGIC;
	if (strncmp(image, IMAGE_MARK, strlen(IMAGE_MARK)) == 0) {
		const char *line = (const char *)image + strlen(IMAGE_MARK);
		while (status == CUDA_SUCCESS && strncmp(line, "global ", 7) == 0) {
			status = add_global(module, context, line);
			line += strcspn(line, "\n");
			line += *line == '\n';
		}
	}
	if (status != CUDA_SUCCESS) {
		unload(module);
		free(module);
		return status;
	}
	*out = module;
	return CUDA_SUCCESS;
}

static CUresult load_data(const char *function, struct module **out, const void *image)
{
	struct context *context = NULL;
	CUresult status = enter_context(function, out != NULL && image != NULL, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	return load(context, image, out);
}

static CUresult load_file(const char *function, struct module **out, const char *path)
{
	struct context *context = NULL;
	char image[4096] = "";
	CUresult status = enter_context(function, out != NULL && path != NULL, &context);
	if (status != CUDA_SUCCESS)
		return status;
	FILE *file = fopen(path, "rbe");
	if (file == NULL)
		return CUDA_ERROR_FILE_NOT_FOUND;
	image[fread(image, 1, sizeof(image) - 1, file)] = '\0';
	(void)fclose(file);
	DRIVER_LOCKED();
	return load(context, image, out);
}

CUDA_API(cuModuleLoad, (CUmodule * out, const char *path))
{
	return load_file(__func__, out, path);
}

CUDA_API(cuModuleLoadData, (CUmodule * out, const void *image))
{
	return load_data(__func__, out, image);
}

CUDA_API(cuModuleLoadDataEx,
	 (CUmodule * out, const void *image, unsigned int count, const int *options, void **values))
{
	(void)count;
	(void)options;
	(void)values;
	return load_data(__func__, out, image);
}

CUDA_API(cuModuleLoadFatBinary, (CUmodule * out, const void *image))
{
	return load_data(__func__, out, image);
}

static CUresult unload_module(const char *function, struct module *module)
{
	CUresult status = enter(function, true);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (!module_valid(module))
		return CUDA_ERROR_INVALID_HANDLE;
	unload(module);
	return CUDA_SUCCESS;
}

CUDA_API(cuModuleUnload, (CUmodule module))
{
	return unload_module(__func__, module);
}

CUDA_API(cuModuleGetFunction, (CUfunction * out, CUmodule module, const char *name))
{
	return get_function(__func__, out, module, name);
}

CUDA_API(cuModuleGetLoadingMode, (int *out))
{
	CUresult status = enter(__func__, out != NULL);

	if (status == CUDA_SUCCESS)
		*out = 2; /* lazy */
	return status;
}

static CUresult get_global(const char *function, CUdeviceptr *address, size_t *bytes,
			   struct module *module, const char *name)
{
	CUresult status = enter(function, name != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (!module_valid(module))
		return CUDA_ERROR_INVALID_HANDLE;
	for (const struct global *g = module->globals; g != NULL; g = g->next) {
		if (strcmp(g->name, name) != 0)
			continue;
		if (address != NULL)
			*address = g->address;
		if (bytes != NULL)
			*bytes = g->bytes;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_FOUND;
}

CUDA_API(cuModuleGetGlobal_v2,
	 (CUdeviceptr * address, size_t *bytes, CUmodule module, const char *name))
{
	return get_global(__func__, address, bytes, module, name);
}

/* --- libraries and kernels: the same, since CUDA 12 ------------------------------------------ */

CUDA_API(cuLibraryLoadData,
	 (CUmodule * out, const void *image, const int *jit, void **jit_values,
	  unsigned int jit_count, const int *options, void **values, unsigned int count))
{
	(void)jit;
	(void)jit_values;
	(void)jit_count;
	(void)options;
	(void)values;
	(void)count;
	return load_data(__func__, out, image);
}

CUDA_API(cuLibraryLoadFromFile,
	 (CUmodule * out, const char *path, const int *jit, void **jit_values,
	  unsigned int jit_count, const int *options, void **values, unsigned int count))
{
	(void)jit;
	(void)jit_values;
	(void)jit_count;
	(void)options;
	(void)values;
	(void)count;
	return load_file(__func__, out, path);
}

CUDA_API(cuLibraryUnload, (CUmodule library))
{
	return unload_module(__func__, library);
}

CUDA_API(cuLibraryGetKernel, (CUfunction * out, CUmodule library, const char *name))
{
	return get_function(__func__, out, library, name);
}

CUDA_API(cuLibraryGetModule, (CUmodule * out, CUmodule library))
{
	CUresult status = enter(__func__, out != NULL);

	if (status == CUDA_SUCCESS && !module_valid(library))
		return CUDA_ERROR_INVALID_HANDLE;
	if (status == CUDA_SUCCESS)
		*out = library;
	return status;
}

CUDA_API(cuLibraryGetGlobal,
	 (CUdeviceptr * address, size_t *bytes, CUmodule library, const char *name))
{
	return get_global(__func__, address, bytes, library, name);
}

CUDA_API(cuKernelGetFunction, (CUfunction * out, CUfunction kernel))
{
	CUresult status = enter(__func__, out != NULL);

	if (status == CUDA_SUCCESS && !function_valid(kernel))
		return CUDA_ERROR_INVALID_HANDLE;
	if (status == CUDA_SUCCESS)
		*out = kernel;
	return status;
}

/* --- questions about a kernel --------------------------------------------------------------- */

enum { ATTRIBUTE_MAX_THREADS = 0, ATTRIBUTE_LOCAL_BYTES = 3, ATTRIBUTE_REGISTERS = 4 };

static CUresult get_attribute(const char *function, int *out, int attribute,
			      const struct function *asked)
{
	CUresult status = enter(function, out != NULL && attribute >= 0);

	if (status == CUDA_SUCCESS && !function_valid(asked))
		return CUDA_ERROR_INVALID_HANDLE;
	if (status != CUDA_SUCCESS)
		return status;
	switch (attribute) {
	case ATTRIBUTE_MAX_THREADS:
		*out = 1024;
		break;
	case ATTRIBUTE_LOCAL_BYTES:
		*out = (int)asked->local_bytes;
		break;
	case ATTRIBUTE_REGISTERS:
		*out = 32;
		break;
	default:
		*out = 0;
		break;
	}
	return CUDA_SUCCESS;
}

CUDA_API(cuFuncGetAttribute, (int *out, int attribute, CUfunction asked))
{
	return get_attribute(__func__, out, attribute, asked);
}

CUDA_API(cuKernelGetAttribute, (int *out, int attribute, CUfunction asked, CUdevice device))
{
	(void)device;
	return get_attribute(__func__, out, attribute, asked);
}

/* Accepted, and without effect. */
static CUresult accept(const char *function, const struct function *asked)
{
	CUresult status = enter(function, true);

	return status == CUDA_SUCCESS && !function_valid(asked) ? CUDA_ERROR_INVALID_HANDLE
								: status;
}

CUDA_API(cuFuncSetAttribute, (CUfunction asked, int attribute, int value))
{
	(void)attribute;
	(void)value;
	return accept(__func__, asked);
}

CUDA_API(cuKernelSetAttribute, (int attribute, int value, CUfunction asked, CUdevice device))
{
	(void)attribute;
	(void)value;
	(void)device;
	return accept(__func__, asked);
}

CUDA_API(cuFuncSetCacheConfig, (CUfunction asked, int config))
{
	(void)config;
	return accept(__func__, asked);
}

CUDA_API(cuFuncLoad, (CUfunction asked))
{
	return accept(__func__, asked);
}

CUDA_API(cuFuncGetModule, (CUmodule * out, CUfunction asked))
{
	CUresult status = enter(__func__, out != NULL);

	if (status == CUDA_SUCCESS && !function_valid(asked))
		return CUDA_ERROR_INVALID_HANDLE;
	if (status == CUDA_SUCCESS)
		*out = asked->module;
	return status;
}

static CUresult get_name(const char *function, const char **out, const struct function *asked)
{
	CUresult status = enter(function, out != NULL);

	if (status == CUDA_SUCCESS && !function_valid(asked))
		return CUDA_ERROR_INVALID_HANDLE;
	if (status == CUDA_SUCCESS)
		*out = asked->name;
	return status;
}

CUDA_API(cuFuncGetName, (const char **out, CUfunction asked))
{
	return get_name(__func__, out, asked);
}

CUDA_API(cuKernelGetName, (const char **out, CUfunction asked))
{
	return get_name(__func__, out, asked);
}
