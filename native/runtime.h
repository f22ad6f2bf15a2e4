// What the kernels may ask of the rest: memory and threads. Implemented in pool.cpp, for the baseline machine.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Memory for vectors of any level, or null. qkv_release(null) does nothing.
void *qkv_allocate(size_t bytes);
void qkv_release(void *memory);

// Runs work(context, worker) on up to `threads` threads and returns when all of them have. The calling thread is
// worker 0; the others are numbered without gaps below `threads`, and fewer may come than were asked for.
// Answers 1 if poll, called by the calling thread while it waits, said stop (the others still end first), else 0.
int qkv_parallel(int threads, void (*work)(void *, int), void *context, int (*poll)(void *), void *poll_context);

#ifdef __cplusplus
}
#endif
