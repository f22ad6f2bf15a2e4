// The interface of a survey, beside qkv.h: one pass over a call's pairs that answers what a summary of its weights needs.
// Nothing of size L×S is held.
#pragma once
#include "qkv.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qkv_survey {
  // Sizes, operands, scores, masks, origin and plan as in the forward pass; value, sink, spread and its results are not
  // looked at. No number of threads changes a bit of any answer, and no tile_rows one of entropy, distance and pooled.
  qkv_call call;
  // Contiguous (N, H, L), compute type. exp(s - base) / whole is the weight of an allowed pair of score s among the keys
  // alone, exp(s - base) * part its weight beside the sink; whole and part are NaN for a row that is lost, base is finite.
  const void *base, *whole, *part;
  // Contiguous (N or 1, L): where each row stands among the keys; position_batch 0: shared by all batches.
  const int64_t *position;
  int64_t position_batch;
  // Any may be null.
  void *entropy;   // (N, H, L), compute type: log(whole) - sum exp(s - base) (s - base) / whole, at least 0
  void *distance;  // (N, H, L), compute type: sum of exp(s - base) / whole times position - j
  // (N, H, S): sums over the rows in units of 1 / unit, so that no order of additions shows; and 1 where a row that is
  // lost may read the key.
  int64_t *received;
  uint8_t *spoiled;
  double unit;
  // (N, H, bands, cells), compute type, zeros before: the largest weight in each rectangle of rows and keys. Row i lies in
  // the band b with row_edge[b] <= i + first_row < row_edge[b + 1], and keys likewise.
  void *pooled;
  const int64_t *row_edge, *key_edge;
  int64_t bands, cells, first_row, first_key;
} qkv_survey;

// 0: done; 1: stopped by poll; 2: no memory for scratch.
typedef int (*qkv_survey_fn)(qkv_survey *);

#ifdef __cplusplus
}
#endif
