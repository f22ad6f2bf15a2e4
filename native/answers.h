// The interface of questions about the weights, beside qkv.h: the call as the forward pass took it, what the rows' states
// were, and the answers. Nothing of size L×S is held.
#pragma once
#include "qkv.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qkv_answers {
  // Sizes, operands, scores, masks, origin and plan as in the forward pass. value, sink, spread and the results of the
  // forward pass are not looked at; no number of threads and no tile_rows changes a bit of entropy and top, and no
  // number of threads one of received.
  qkv_call call;
  // Contiguous (N, H, L), compute type. The weight of an allowed pair of score s is exp(s - base) / whole; whole is NaN
  // for a row that is lost, and base finite.
  const void *base, *whole;
  // Any may be null. Compute type, contiguous.
  void *entropy;   // (N, H, L): log(whole) - sum exp(s - base) (s - base) / whole, at least 0
  void *received;  // (N, H, S): the sum over the rows
  // The `count` largest weights of each row, falling, ties by the lower key: (N, H, L, count). Rows with fewer allowed keys
  // are filled up with key -1 and weight 0. first_key is added to the keys.
  int64_t count, first_key;
  int64_t *top_key;
  void *top_weight;
  // Scores, (N, H, L, S), and 1 where a pair is allowed; only those of allowed pairs are written. base and whole may then be
  // null, if nothing else is asked.
  void *score;
  uint8_t *reach;
  // Keys that share one pass over the rows where `received` is asked for.
  int64_t run;
} qkv_answers;

// 0: done; 1: stopped by poll; 2: no memory for scratch.
typedef int (*qkv_answers_fn)(qkv_answers *);

#ifdef __cplusplus
}
#endif
