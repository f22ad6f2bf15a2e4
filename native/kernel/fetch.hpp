// Memory that will be needed soon is asked for line by line while the processor multiplies: what lies beyond the caches comes
// meanwhile. A prefetch may name any address, so nothing here can go wrong but time.
#pragma once
#include "vector.hpp"

namespace {

// Rows of memory to ask for, those told of last first.
struct Fetch {
  struct Part {
    const char *row;
    int64_t bytes, stride, rows;
    bool write;
  };
  static constexpr int most_parts = 20;
  Part part[most_parts];
  int parts;

  void clear() { parts = 0; }
  void add(const char *row, int64_t bytes, int64_t stride, int64_t rows, bool write = false) {
    if (rows <= 0 || bytes <= 0 || parts == most_parts) return;
    if (stride == bytes && bytes % 64 == 0) rows *= bytes / 64, stride = bytes = 64;  // one run of lines
    part[parts++] = {row, bytes, stride, rows, write};
  }
  // Asks for about so many lines, whole rows.
  QKV_INLINE void lines(int64_t count) {
    while (parts > 0 && count > 0) {
      Part &p = part[parts - 1];
      const int64_t bytes = p.bytes, stride = p.stride, each = (bytes + 63) / 64, some = (count + each - 1) / each;
      const int64_t rows = some < p.rows ? some : p.rows;
      const char *row = p.row;
      if (p.write)
        for (int64_t r = 0; r < rows; ++r, row += stride)
          for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 1, 2);
      else
        for (int64_t r = 0; r < rows; ++r, row += stride)
          for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
      p.row = row, count -= rows * each;
      if ((p.rows -= rows) == 0) --parts;
    }
  }
};

// Lines that a tile of a product asks for: a thousand cycles or two bring about as many.
constexpr int kPace = 24;

}  // namespace
