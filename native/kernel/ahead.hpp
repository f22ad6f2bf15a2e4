// What the next block will read, asked for while this one is worked on.
#pragma once
#include "vector.hpp"

namespace {

// Rows of memory that will be read soon: the keys of the next block, `then` its values.
struct Ahead {
  const char *row;
  int64_t at, bytes, stride, rows;
  const char *then;
  int64_t then_bytes, then_stride, then_rows;
  int pace;  // lines that a step of a product asks for
};

// Memory is the limit here, and idle while scores are computed; so what the next block will read is asked for line by line
// all through the work on this one. A prefetch may name any address.
QKV_INLINE void fetch_ahead(Ahead &next, int lines) {
  for (int i = 0; i < lines && next.rows > 0; ++i) {
    __builtin_prefetch(next.row + next.at, 0, 2);
    next.at += 64;
    if (next.at < next.bytes) continue;
    next.at = 0, next.row += next.stride;
    if (--next.rows == 0) next.row = next.then, next.bytes = next.then_bytes, next.stride = next.then_stride, next.rows = next.then_rows, next.then_rows = 0;
  }
}

}  // namespace
