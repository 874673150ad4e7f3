/* SPDX-License-Identifier: Apache-2.0
 *
 * Every other name that a real libcuda.so.1 exports. The definitions elsewhere are stronger.
 */
#include "driver.h"

#define VGPU_CUDA_SYMBOL(symbol, version)                                                          \
	__attribute__((weak, visibility("default"))) CUresult symbol(void);                        \
	__attribute__((weak, visibility("default"))) CUresult symbol(void)                         \
	{                                                                                          \
		CUresult status = enter(#symbol, true);                                            \
		return status != CUDA_SUCCESS ? status : CUDA_ERROR_NOT_SUPPORTED;                 \
	}
#include "fake_driver.gen.h"
