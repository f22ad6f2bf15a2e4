// The interface of questions about single keys of a row, beside qkv.h: what a key put into the row's output, and what the
// output would be without it. Nothing of size L×S is held but the answers that were asked for.
#pragma once
#include "qkv.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qkv_shares {
  // Sizes, operands, sink, scores, masks, origin and plan as in the forward pass; spread and its results are not looked at.
  // No number of threads, no tile_rows and no run changes a bit of any answer.
  qkv_call call;
  // Contiguous (N, H, L), compute type: the weight w of an allowed pair of score s, beside the sink, is exp(s - base) / whole;
  // base is finite, and whole NaN for a row that is lost. (N, H, L, E): the rows' outputs o, not rounded to a narrower type.
  const void *base, *whole, *output;
  // (N, H, L, S), compute type, contiguous, zeros before, which is what forbidden pairs keep; any may be null. Allowed pairs
  // of a lost row are NaN. What divides by |o| says nothing where o is 0.
  void *weight;    // w
  void *norm;      // w |v|
  void *share;     // w v·o / |o|²
  void *relative;  // |o - without| / |o|
  // (N, H, L, S, E), the same: without - o, where `without` is the row's output with the key forbidden.
  void *vectors;
  // (N, H, L): how many keys the row may read, and the sum of their numbers (which one it is, if it is one); zeros before.
  int64_t *count, *place;
  // (N, H, L), -1 before: the key that has more than half of the row, where relative or vectors is asked for.
  int64_t *heavy;
  // Keys of one task.
  int64_t run;
} qkv_shares;

// 0: done; 1: stopped by poll; 2: no memory for scratch.
typedef int (*qkv_shares_fn)(qkv_shares *);

#ifdef __cplusplus
}
#endif
