// SPDX-License-Identifier: Apache-2.0
#include "reason.h"

#include <stdarg.h>
#include <stdio.h>

bool refuse(struct reason *reason, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(reason->text, sizeof(reason->text), format, arguments);
	va_end(arguments);
	return false;
}
