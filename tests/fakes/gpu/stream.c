#include "stream.h"
void stream_init_context(struct context *context) { (void)context; }
void stream_forget_context(struct context *context) { (void)context; }
