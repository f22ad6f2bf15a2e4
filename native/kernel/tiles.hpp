// Matrix tiles (AMX): eight registers of 16 rows of 64 bytes, and one instruction that multiplies a tile of bfloat16 by
// another and adds to a tile of float32:
//   C[m][n] += Σ_k A[m][2k] B[k][2n] + A[m][2k + 1] B[k][2n + 1],   16 × 16 sums of 32 products.
// The products are exact; in which order they are added is the processor's, the same for every row and column. A sum of many
// such steps is taken in ascending order. Subnormal operands and sums count as zeros, whatever the floating-point mode.
//
// Written as assembly: the compiler's own functions do not say which memory they read.
#pragma once
#include "vector.hpp"

#if defined(__AMX_BF16__)
#define QKV_TILES 1
#else
#define QKV_TILES 0
#endif

namespace {

constexpr int64_t kTileSide = 16;   // rows and columns of a tile of sums
constexpr int64_t kTileDepth = 32;  // bfloat16 in a row of a tile

#if QKV_TILES
// All tiles of this thread are whole ones, and 0.
QKV_INLINE void shape_tiles() {
  struct {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } shape;
  static_assert(sizeof shape == 64, "the layout is the processor's");
  asm volatile("ldtilecfg %0" : : "m"(shape));
}
QKV_INLINE void release_tiles() { asm volatile("tilerelease"); }
#else
QKV_INLINE void shape_tiles() {}
QKV_INLINE void release_tiles() {}
#endif

// A thread's tiles from use() to the end of its work; a thread that left them in use would be slower to switch.
class Tiles {
 public:
  void use() { shape_tiles(), used_ = true; }
  ~Tiles() {
    if (used_) release_tiles();
  }

  bool used_ = false;
};

#if QKV_TILES
template <int R> QKV_INLINE void tile_zero() { asm volatile("tilezero %%tmm%c0" : : "i"(R)); }
template <int R> QKV_INLINE void tile_load(const void *from, int64_t step) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(R), "r"(from), "r"(step) : "memory");
}
template <int R> QKV_INLINE void tile_store(void *to, int64_t step) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(R), "r"(to), "r"(step) : "memory");
}
// C += A B.
template <int C, int A, int B> QKV_INLINE void tile_add() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}
#endif

}  // namespace
