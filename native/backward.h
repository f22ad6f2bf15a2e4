// The interface of the backward pass, beside qkv.h: the call as the forward pass took it, what that gave, and the gradients.
#pragma once
#include "qkv.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qkv_backward {
  // Sizes, operands, scores, masks as in the forward pass. tile_rows and block as there; spread 1: queries and keys are
  // cut into tasks of their own, two passes, instead of one pass a group; split: keys of such a task. None of these and no
  // number of threads changes a bit. sink, origin and the results of the forward pass are not looked at.
  qkv_call call;
  // In the query's dtype: (N, H, L, E).
  qkv_operand output, doutput;
  // Contiguous (N, H, L), compute type; dlse null: zeros.
  const void *lse, *dlse;
  // Compute type, columns contiguous. dquery is written; dkey and dvalue are added to.
  qkv_operand dquery, dkey, dvalue;
  // base null: not wanted. Compute type, element (n, h, i, j), added to; batches and heads lie apart, stride 0 along i or j
  // where the bias was broadcast.
  qkv_operand dbias;
  // Contiguous (N, H, L), compute type, written: rowsum(doutput * output) - dlse, NaN for a row that is lost.
  void *delta;
} qkv_backward;

// 0: done; 1: stopped by poll; 2: no memory for scratch.
typedef int (*qkv_backward_fn)(qkv_backward *);

#ifdef __cplusplus
}
#endif
