// The interface of attention that answers questions about its weights in the same pass, beside qkv.h.
#pragma once
#include "qkv.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qkv_keep {
  // The whole call, results included; spread is not looked at, and tile_rows counts rows of one query head. Output,
  // log-sum-exp and states have the bits of the call alone. No number of threads changes a bit of any answer.
  qkv_call call;
  // Any may be null. Compute type, contiguous; NaN for a row that is lost, and for the keys that it may read.
  void *entropy;   // (N, H, L), of the weights renormalised over the keys
  void *received;  // (N, H, S), sums over the rows of weights beside the sink
  // As in qkv_answers, of weights beside the sink.
  int64_t count, first_key;
  int64_t *top_key;
  void *top_weight;
} qkv_keep;

// 0: done; 1: stopped by poll; 2: no memory for scratch.
typedef int (*qkv_keep_fn)(qkv_keep *);

#ifdef __cplusplus
}
#endif
