// The one interface between Python and the kernels: a C struct and a function-pointer type.
// No C++ library type may appear here or in any file that is compiled once per instruction set.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum qkv_dtype { QKV_F16 = 0, QKV_BF16 = 1, QKV_F32 = 2, QKV_F64 = 3 };

// What a row met on its way; bits are OR-ed over all keys of the row. The same bits as qkv.state.
enum qkv_status {
  QKV_ALLOWED = 1,    // at least one pair of the row is allowed
  QKV_NONFINITE = 2,  // an allowed pair reads a NaN or infinity in query, key, value or bias
  QKV_OVERFLOW = 4,   // a score of an allowed pair became +inf or NaN although its operands are finite
  QKV_LOW = 8         // an allowed score overflowed to -inf (an error only if all of the row's did)
};

// An operand of any strides. Element (batch n, head h, row i, column d) is at
// base + batch_offset[n] + h * stride[0] + i * stride[1] + d * stride[2], all in bytes.
typedef struct qkv_operand {
  const char *base;
  const int64_t *batch_offset;
  int64_t stride[3];
  int32_t dtype;
} qkv_operand;

typedef struct qkv_call {
  // Sizes: N batches (all batch axes flattened), H query heads, G key heads, L queries, S keys.
  int64_t N, H, G, L, S, D, E;
  qkv_operand query, key, value;
  // Scores. softcap 0: none. slopes, sink: H values or null. Position of row i of batch n: i + offset[n].
  double scale, softcap;
  const double *slopes;
  const double *sink;
  const int64_t *offset;
  // bias.base null: none; element (n, h, i, j); float32 or the query's dtype.
  qkv_operand bias;
  // allow.base null: none; one byte a pair, element (n, h, i, j), 0 = forbidden. Applied inside the ranges.
  qkv_operand allow;
  // Row i of batch n may read key j only if lo[k] <= j < hi[k] for some k < K, where lo, hi = base +
  // n * range_batch + i * K: disjoint, ascending, empty ones lo >= hi. range_batch 0: shared by all batches.
  const int32_t *lo, *hi;
  int64_t K, range_batch;
  // First key of the row's own sequence, from which key blocks are counted; may be negative; null: 0.
  // base + n * origin_batch + i.
  const int32_t *origin;
  int64_t origin_batch;
  // The plan. tile_rows: query rows a task takes (of each head of a group). block: keys per softmax step,
  // split: keys per independent state (a multiple of block); both counted from the row's origin.
  // spread 1: tasks are also cut along splits (few rows, many keys). Neither tile_rows, spread nor threads
  // may change any bit of the result.
  int64_t tile_rows, block, split, spread, threads;
  // Results, contiguous. output (N, H, L, E) in the query's dtype (null when mix is asked for), or (N, L, H, E) with
  // output_length_first.
  // lse (N, H, L), max, sum (N, H, L), mix (N, H, L, E) in the compute type: double for f64, else float.
  // status (N, H, L) bytes. Any of lse, max, sum, mix may be null; status may not.
  void *output;
  int64_t output_length_first;
  void *lse, *max, *sum, *mix;
  uint8_t *status;
  // Non-null: called between tiles by the calling thread; a non-zero answer stops the call.
  int (*poll)(void *);
  void *poll_context;
  // Written on return: OR and AND over the status of all rows, key blocks touched (summed over tasks).
  int32_t status_any, status_all;
  int64_t blocks_touched;
} qkv_call;

// 0: done; 1: stopped by poll; 2: no memory for scratch.
typedef int (*qkv_attend_fn)(qkv_call *);

#ifdef __cplusplus
}
#endif
