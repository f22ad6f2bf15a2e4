// Memory that will be needed soon is asked for line by line while the processor multiplies: what lies beyond the caches comes
// meanwhile. A prefetch may name any address, so nothing here can go wrong but time.
#pragma once
#include "vector.hpp"

namespace {

// Rows of memory to ask for, those told of last first.
struct Fetch {
  struct Part {
    const char *row;
    int64_t at, bytes, stride, rows;
    bool write;
  };
  static constexpr int most_parts = 20;
  Part part[most_parts];
  int parts;

  void clear() { parts = 0; }
  void add(const char *row, int64_t bytes, int64_t stride, int64_t rows, bool write = false) {
    if (rows <= 0 || bytes <= 0 || parts == most_parts) return;
    part[parts++] = {row, 0, bytes, stride, rows, write};
  }
  QKV_INLINE void lines(int count) {
    for (; count > 0 && parts > 0; --count) {
      Part &p = part[parts - 1];
      if (p.write)
        __builtin_prefetch(p.row + p.at, 1, 2);
      else
        __builtin_prefetch(p.row + p.at, 0, 2);
      p.at += 64;
      if (p.at < p.bytes) continue;
      p.at = 0, p.row += p.stride;
      if (--p.rows == 0) --parts;
    }
  }
};

// Lines that a tile of a product asks for: a thousand cycles or two bring about as many.
constexpr int kPace = 24;

}  // namespace
