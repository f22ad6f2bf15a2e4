// The mixture by matrix tiles (tiles.hpp), for values of bfloat16. A weight is a float32, so it goes in as three bfloat16
// that add up to it exactly: its first, next and last eight bits. Keys are taken 32 at a time, counted from the block's
// beginning, and for each 32 the first parts, the second, the third:
//   X[e][lane] += Σ_key value[key][e] part[key][lane] 2^46 from 0,   mix[e] = fma(mix[e], alpha, X 2^-46).
// The tiles take subnormal numbers for zeros; 2^46 makes every part of every weight a normal one, and what is lost of
// sums is below anything a float32 can hold. A key with a subnormal value, or with one so large that 2^46 of it could
// overflow, is `careful`: lanes to which it gives weight are mixed by the chain that other types go.
#pragma once
#include "pack.hpp"
#include "pairs.hpp"
#include "transpose.hpp"

namespace {

#if QKV_TILES

constexpr float kLift = 0x1p46f;

// Numbers that are subnormal, or not below 2^64: with 2^46 on top, the sum of a block's others cannot overflow. NaN and
// infinities too.
QKV_INLINE __mmask32 careful_numbers(__m512i x) {
  const __m512i size = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff)), least = _mm512_set1_epi16(0x0080);
  const __m512i above = _mm512_sub_epi16(size, least);  // wraps around for subnormals and zero
  return _mm512_mask_cmpge_epu16_mask(_mm512_test_epi16_mask(size, size), above, _mm512_set1_epi16(0x5f80 - 0x0080));
}

// The block's values as tiles [group of 32 keys][E][32]; what is no number or outside of the block is 0.
QKV_INLINE void ready_values(Work<float> &w) {
  const qkv_operand &o = w.call->value;
  const int64_t E = w.call->E, stride = o.stride[1];
  bool careful = false;
  const char **const row = w.value_at;
  for (int64_t j = w.begin; j < w.end; ++j) {
    const char *from = w.value_row(w.first + j);
    if (o.stride[2] != 2) {
      uint16_t *const own = w.own_values + j * E;
      for (int64_t e = 0; e < E; ++e) __builtin_memcpy(own + e, from + e * o.stride[2], 2);
      from = (const char *)own;
    } else if (j + 8 < w.end) {
      for (int64_t at = 0; at < 2 * E; at += 64) __builtin_prefetch(from + 8 * stride + at);
    }
    __mmask32 odd = 0;
    for (int64_t e = 0; e < E; e += kTileDepth) odd |= careful_numbers(_mm512_loadu_si512(from + 2 * e));
    w.careful_value[j] = 0;
    if (__builtin_expect(odd, 0)) {
      if (odd_pairs(from, E).endless)
        w.bad[j] |= 2, w.any_bad = true, from = (const char *)w.zeros;
      else
        w.careful_value[j] = careful = true;
    }
    row[j] = from;
  }
  w.any_careful_value = careful;
  const auto at = [&](int64_t j) { return j >= w.begin && j < w.end ? row[j] : (const char *)w.zeros; };
  const char *line[kTileSide];
  for (int64_t i = 0; i < kTileSide; ++i) line[i] = (const char *)(w.value_pairs + i * kTileSide);
  for (int64_t group = w.begin / kTileDepth; group * kTileDepth < w.end; ++group)
    for (int64_t e = 0; e < E; e += kTileSide) {
      for (int64_t k = 0; k < kTileSide; ++k) {
        const int64_t j = group * kTileDepth + 2 * k;
        const __m512i even = _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256((const __m256i *)(at(j) + 2 * e)));
        const __m512i odd = _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256((const __m256i *)(at(j + 1) + 2 * e)));
        store(w.value_pairs + k * kTileSide, (Vec<float>)((IVec<float>)even | ((IVec<float>)odd << 16)));
      }
      transpose<float, Plain<float>>(line, 0, (float *)(w.value_tiles + (group * E + e) * kTileDepth), kTileSide);
    }
}

// Two neighbouring keys' weights as words of their parts: `part[i]` of the even one below, of the odd one above.
QKV_INLINE void split_weights(Vec<float> even, Vec<float> odd, IVec<float> *part) {
  const IVec<float> top = all_int<float>(int32_t(0xffff0000));
  for (int i = 0; i < 3; ++i) {
    const IVec<float> low = (IVec<float>)even & top, high = (IVec<float>)odd & top;
    part[i] = ((low >> 16) & all_int<float>(0xffff)) | high;
    even = even - (Vec<float>)low, odd = odd - (Vec<float>)high;
  }
}

// The panel's weights in parts, [group][part][16][lanes], 0 outside of its keys.
template <int N> void part_weights(Work<float> &w, const Panel &p) {
  constexpr int64_t W = N * kTileSide, tile = kTileSide * W;
  const int64_t begin = p.begin / kTileDepth * kTileDepth, end = (p.end + kTileDepth - 1) / kTileDepth * kTileDepth;
  const auto weight = [&](int64_t j, int v) {
    return j >= p.begin && j < p.end ? load(w.score + j * W + v * kTileSide) * all<float>(kLift) : Vec<float>{};
  };
  for (int64_t j = begin; j < end; j += 2) {
    float *const to = w.weight_parts + j / kTileDepth * 3 * tile + j % kTileDepth / 2 * W;
    for (int v = 0; v < N; ++v) {
      IVec<float> part[3];
      split_weights(weight(j, v), weight(j + 1, v), part);
      for (int i = 0; i < 3; ++i) store(to + i * tile + v * kTileSide, (Vec<float>)part[i]);
    }
  }
}

// Sums over all groups for M × 16 columns of the values, [M × 16][lanes].
template <int M, int N> QKV_INLINE void tile_sums(const Work<float> &w, const Panel &p, int64_t e, float *sum) {
  constexpr int64_t W = N * kTileSide, tile = kTileSide * W, step = 4 * W;
  tile_zero<0>();
  if constexpr (N > 1) tile_zero<1>();
  if constexpr (M > 1) tile_zero<2>();
  if constexpr (M > 1 && N > 1) tile_zero<3>();
  for (int64_t group = p.begin / kTileDepth; group * kTileDepth < p.end; ++group) {
    const uint16_t *const value = w.value_tiles + (group * w.call->E + e) * kTileDepth;
    const float *part = w.weight_parts + group * 3 * tile;
    tile_load<4>(value, 64);
    if constexpr (M > 1) tile_load<5>(value + kTileSide * kTileDepth, 64);
    for (int i = 0; i < 3; ++i, part += tile) {
      tile_load<6>(part, step);
      tile_add<0, 4, 6>();
      if constexpr (N > 1) tile_load<7>(part + kTileSide, step), tile_add<1, 4, 7>();
      if constexpr (M > 1) tile_add<2, 5, 6>();
      if constexpr (M > 1 && N > 1) tile_add<3, 5, 7>();
    }
  }
  tile_store<0>(sum, step);
  if constexpr (N > 1) tile_store<1>(sum + kTileSide, step);
  if constexpr (M > 1) tile_store<2>(sum + tile, step);
  if constexpr (M > 1 && N > 1) tile_store<3>(sum + tile + kTileSide, step);
}

// Which lanes give weight to a careful key; their sums by the chain, [lane][E].
template <int N> uint32_t careful_lanes(Work<float> &w, const Panel &p) {
  constexpr int64_t W = N * kTileSide;
  const int64_t E = w.call->E, step = w.call->value.stride[2];
  uint32_t lanes = 0;
  for (int64_t j = p.begin; j < p.end; ++j)
    for (int64_t i = 0; w.careful_value[j] && i < W; ++i) lanes |= uint32_t(w.score[j * W + i] != 0) << i;
  for (int64_t i = 0; i < W; ++i) {
    if (!(lanes >> i & 1)) continue;
    float *const sum = w.careful_mix + i * E;
    for (int64_t e = 0; e < E; ++e) sum[e] = 0;
    for (int64_t j = p.begin; j < p.end; ++j) {
      if (w.bad[j] & 2) continue;
      const char *const value = w.value_row(w.first + j);
      for (int64_t e = 0; e < E; ++e) sum[e] = fma1(w.score[j * W + i], Element<QKV_BF16>::read(value + e * step), sum[e]);
    }
  }
  return lanes;
}

// mix = alpha mix + the block's weights times its values.
template <class T, int N> __attribute__((noinline)) void mix_tiles(Work<T> &w, const Panel &p, const T *alpha) {
  if constexpr (sizeof(T) == 4) {
    constexpr int64_t W = N * kTileSide;
    const int64_t E = w.call->E;
    const uint32_t careful = __builtin_expect(w.any_careful_value, 0) ? careful_lanes<N>(w, p) : 0;
    part_weights<N>(w, p);
    alignas(kAlign) float sum[2 * kTileSide * W];
    for (int64_t e = 0; e < E; e += 2 * kTileSide) {
      tile_sums<2, N>(w, p, e, sum);
      float *const mix = w.mix + p.lane * E + e * W;
      for (int64_t i = 0; i < W; i += kTileSide) {
        const Vec<float> by = load(alpha + i), lower = all<float>(1 / kLift);
        for (int64_t at = i; at < 2 * kTileSide * W; at += W) {
          Vec<float> x = load(sum + at) * lower;
          for (int64_t lane = 0; __builtin_expect(careful != 0, 0) && lane < kTileSide; ++lane)
            if (careful >> (i + lane) & 1) x[lane] = w.careful_mix[(i + lane) * E + e + at / W];
          store(mix + at, fma(load(mix + at), by, x));
        }
      }
    }
  }
}

#else

template <class T, int N> void mix_tiles(Work<T> &, const Panel &, const T *) {}

#endif

template <class T> void ready_values(Work<T> &) {}

}  // namespace
