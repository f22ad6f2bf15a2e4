// Whether this processor's tiles do what the engine takes for granted: small whole numbers come out exactly, and a product is
// the same, bit for bit, with its sides changed: prefill has values on one side and decoding on the other. No manual says the
// second, so it is tried once before the level is offered.
#pragma once
#include "tiles.hpp"

namespace {

#if QKV_TILES

// A tile of bfloat16, [row][32], as the other side of a product has it: neighbours of a column side by side.
QKV_INLINE void other_side(const uint16_t *rows, uint16_t *pairs) {
  for (int n = 0; n < kTileSide; ++n)
    for (int k = 0; k < kTileDepth; ++k) pairs[k / 2 * kTileDepth + 2 * n + k % 2] = rows[n * kTileDepth + k];
}

// sum[m][n] = Σ_k a[m][k] b[n][k].
__attribute__((noinline)) void tile_product(const uint16_t *a, const uint16_t *b, float *sum) {
  alignas(64) uint16_t pairs[kTileSide * kTileDepth];
  other_side(b, pairs);
  tile_zero<0>();
  tile_load<1>(a, 64), tile_load<2>(pairs, 64);
  tile_add<0, 1, 2>(), tile_add<0, 1, 2>();
  tile_store<0>(sum, 64);
}

inline bool try_tiles() {
  constexpr int side = int(kTileSide), depth = int(kTileDepth);
  alignas(64) uint16_t a[side * depth], b[side * depth];
  alignas(64) float sum[side * side], changed[side * side];
  Tiles tiles;
  tiles.use();
  // -4 to 4: whole numbers that small are themselves in bfloat16, and so is every sum of their products in float32.
  const auto whole = [](int i) { return float(i % 9 - 4); };
  const auto top = [](float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return uint16_t(bits >> 16);
  };
  for (int i = 0; i < side * depth; ++i) a[i] = top(whole(i * 7)), b[i] = top(whole(i * 5 + i / depth));
  tile_product(a, b, sum);
  bool good = true;
  for (int m = 0; m < side; ++m)
    for (int n = 0; n < side; ++n) {
      float exact = 0;
      for (int k = 0; k < depth; ++k) exact += whole((m * depth + k) * 7) * whole((n * depth + k) * 5 + n);
      good &= sum[m * side + n] == 2 * exact;
    }
  // Numbers of all sizes, whose sums are rounded at every step.
  uint32_t noise = 1;
  const auto next = [&] { return noise = noise * 1664525u + 1013904223u; };
  const auto any = [&] { return uint16_t((next() >> 16 & 0x807f) | ((112 + (next() >> 27)) << 7)); };
  for (int i = 0; i < side * depth; ++i) a[i] = any(), b[i] = any();
  tile_product(a, b, sum), tile_product(b, a, changed);
  for (int m = 0; m < side; ++m)
    for (int n = 0; n < side; ++n) good &= __builtin_memcmp(sum + m * side + n, changed + n * side + m, 4) == 0;
  return good;
}

#endif

}  // namespace
