// A tile of a few lanes by matrix tiles (tiles.hpp): the same sums as the panel's, element by element. Scores have the keys
// as rows, read where the caller has them; in the mixture lanes are rows and values are columns, whose neighbouring keys
// are put together on the way.
#pragma once
#include "ahead.hpp"
#include "panel.hpp"
#include "transpose.hpp"

namespace {

#if QKV_TILES

// Scaled dot products of all rows with the keys [begin, end) of the block; false if one has a subnormal number.
QKV_INLINE bool few_tile_scores(Work<float> &w, int64_t begin, int64_t end, Ahead &next) {
  const int64_t D = w.call->D, depth = D / kTileDepth, stride = w.call->key.stride[1];
  const char *key = w.key_row(w.first + begin);
  bool tiny = false;
  alignas(kAlign) float sum[kTileSide * kTileSide], row[kTileSide * kTileSide];
  const char *line[kTileSide];
  for (int64_t i = 0; i < kTileSide; ++i) line[i] = (const char *)(sum + i * kTileSide);
  for (int64_t j = begin; j < end; j += kTileSide, key += kTileSide * stride) {
    const int64_t keys = least(kTileSide, end - j);
    const bool whole = keys == kTileSide;
    const char *const from = whole ? key : whole_tile(w, key, stride, keys);
    const int64_t step = whole ? stride : 2 * D;
    for (int64_t i = 0; i < kTileSide; ++i) tiny |= odd_pairs(from + i * step, D).tiny;
    tile_zero<0>();
    for (int64_t k = 0; k < depth; ++k) {
      fetch_ahead(next, kTileSide);
      tile_load<4>(from + 64 * k, step);
      tile_load<6>(w.query_pairs + k * kTileSide * kTileSide, 64);
      tile_add<0, 4, 6>();
    }
    tile_store<0>(sum, 64);
    transpose<float, Plain<float>>(line, 0, row, kTileSide);
    for (int64_t r = 0; r < w.few; ++r)
      store(w.few_score + r * w.few_step + j, load(row + r * kTileSide) * all<float>(w.scale));
  }
  return !tiny;
}

// 32 weights of row r from key j on in three parts, each as a row of a tile; `low`, `high`: where the row's weights are.
QKV_INLINE void few_part(const Work<float> &w, int64_t r, int64_t j, int64_t low, int64_t high, float *to) {
  const float *const weight = w.few_score + r * w.few_step + j;
  const auto half = [&](int64_t at) {
    return j + at >= low && j + at < high ? load(weight + at) * all<float>(kLift) : Vec<float>{};
  };
  Vec<float> first = half(0), second = half(kTileSide);
  const IVec<float> top = all_int<float>(int32_t(0xffff0000));
  for (int i = 0; i < 3; ++i, to += kTileSide * kTileSide) {
    const Vec<float> a = (Vec<float>)((IVec<float>)first & top), b = (Vec<float>)((IVec<float>)second & top);
    const __m512bh both = _mm512_cvtne2ps_pbh((__m512)b, (__m512)a);  // exact
    __builtin_memcpy(to + r * kTileSide, &both, 64);
    first = first - a, second = second - b;
  }
}

// Values of 32 keys and 32 columns as two tiles of pairs of keys; false if a number among them needs care.
QKV_INLINE bool few_values(const char *const *row, int64_t e, float *to) {
  __mmask32 careful = 0;
  for (int64_t k = 0; k < kTileSide; ++k) {
    const __m512i even = _mm512_loadu_si512(row[2 * k] + 2 * e), odd = _mm512_loadu_si512(row[2 * k + 1] + 2 * e);
    careful |= careful_numbers(even) | careful_numbers(odd);
    // Each 128 bits on their own: columns 0-3, 8-11, 16-19, 24-27 in the first tile, the others in the second.
    _mm512_storeu_si512(to + k * kTileSide, _mm512_unpacklo_epi16(even, odd));
    _mm512_storeu_si512(to + (kTileSide + k) * kTileSide, _mm512_unpackhi_epi16(even, odd));
  }
  return careful == 0;
}

// The block's weights times its values, into few_next; false if a value needs care.
QKV_INLINE bool few_tile_mix(Work<float> &w, int64_t begin, int64_t end, int64_t low, int64_t high, Ahead &next) {
  const int64_t E = w.call->E, first = begin / kTileDepth, last = (end + kTileDepth - 1) / kTileDepth, stride = w.call->value.stride[1];
  const char *const base = w.value_row(w.first);
  constexpr int64_t tile = kTileSide * kTileSide;
  for (int64_t group = first; group < last; ++group)
    for (int64_t r = 0; r < w.few; ++r) few_part(w, r, group * kTileDepth, low, high, w.weight_parts + group * 3 * tile);
  alignas(kAlign) float sum[2][kTileSide * kTileSide];
  for (int64_t e = 0; e < E; e += kTileDepth) {
    tile_zero<0>(), tile_zero<1>();
    for (int64_t group = first; group < last; ++group) {
      const char *row[kTileDepth];
      for (int64_t i = 0; i < kTileDepth; ++i) {
        const int64_t j = group * kTileDepth + i;
        row[i] = j >= begin && j < end ? base + j * stride : (const char *)w.zeros;
      }
      fetch_ahead(next, kTileDepth);
      if (!few_values(row, e, w.value_pairs)) return false;
      tile_load<6>(w.value_pairs, 64), tile_load<7>(w.value_pairs + tile, 64);
      const float *part = w.weight_parts + group * 3 * tile;
      for (int i = 0; i < 3; ++i, part += tile) {
        tile_load<4>(part, 64);
        tile_add<0, 4, 6>(), tile_add<1, 4, 7>();
      }
    }
    tile_store<0>(sum[0], 64), tile_store<1>(sum[1], 64);
    const __m512i front = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i back = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    for (int64_t r = 0; r < w.few; ++r) {
      const __m512 a = (__m512)load(sum[0] + r * kTileSide), b = (__m512)load(sum[1] + r * kTileSide);
      float *const to = w.few_next + r * E + e;
      store(to, (Vec<float>)_mm512_permutex2var_ps(a, front, b) * all<float>(1 / kLift));
      store(to + kTileSide, (Vec<float>)_mm512_permutex2var_ps(a, back, b) * all<float>(1 / kLift));
    }
  }
  return true;
}

#endif

template <class T> bool few_tile_scores(Work<T> &, int64_t, int64_t, Ahead &) { return false; }
template <class T> bool few_tile_mix(Work<T> &, int64_t, int64_t, int64_t, int64_t, Ahead &) { return false; }

}  // namespace
