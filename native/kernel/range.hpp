// The keys a row may read according to its ranges, walked block by block in ascending order.
#pragma once
#include <stdint.h>

namespace {

constexpr int64_t kNone = INT64_MAX;

QKV_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
QKV_INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// Floor division: blocks and splits are counted from an origin that may lie behind the first key.
QKV_INLINE int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

struct RowKeys {
  const int32_t *lo, *hi;
  int64_t count, cursor;  // ranges, and the first of them that still matters
  int64_t floor, limit;   // no key outside [floor, limit) whatever the ranges say
  int64_t begin, end;     // hull of the row's keys in the block at hand
  bool whole;             // one range covers that hull

  void start(const int32_t *lo_, const int32_t *hi_, int64_t count_, int64_t floor_, int64_t limit_) {
    lo = lo_, hi = hi_, count = count_, cursor = 0, floor = floor_, limit = limit_;
  }
  int64_t low(int64_t k) const { return most(lo[k], floor); }
  int64_t high(int64_t k) const { return least(hi[k], limit); }

  // The first key at or after `from`, or kNone. Calls come with ascending `from`.
  int64_t next(int64_t from) {
    while (cursor < count && (high(cursor) <= from || low(cursor) >= high(cursor))) ++cursor;
    return cursor < count ? most(low(cursor), from) : kNone;
  }

  // Sets begin, end, whole for the block [b0, b1).
  void cut(int64_t b0, int64_t b1) {
    begin = next(b0), end = begin, whole = false;
    if (begin >= b1) {
      begin = end = 0;
      return;
    }
    int pieces = 0;
    for (int64_t k = cursor; k < count && low(k) < b1; ++k)
      if (low(k) < high(k)) end = most(end, least(high(k), b1)), ++pieces;
    whole = pieces == 1;
  }
};

}  // namespace
