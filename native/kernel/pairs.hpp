// Scores of bfloat16 by products of pairs, where the processor has them: one instruction multiplies two neighbouring numbers
// of a key with two of a query, exactly, and adds both to a float32. Keys are read as the caller has them, queries lie in
// columns of pairs, unscaled; the scale multiplies the finished sum:
//   X[key][lane] = pair(K[key][2k, 2k + 1], Q[2k, 2k + 1][lane], X[key][lane]) from 0, k ascending,   s = X * T(scale).
// The instruction takes subnormal numbers for zeros, and a sum may overflow that would not with the scale in it. Pairs of a
// query and a key of which one has a subnormal number (`careful`), and sums that are not finite, are therefore done again
// by the chain that other types go, one by one: it depends on the two alone, so a row's bits depend on nothing else.
// Tiles (tiles.hpp) do the same for 16 keys and lanes at once, in another order of additions, for widths that fill them.
#pragma once
#include "product.hpp"
#include "work.hpp"

namespace {

// The score's dot product by the chain of scaled query and key, from 0.
template <class T> T chain_of(const Work<T> &w, const Panel &p, int lane, int64_t j) {
  const int64_t W = p.vectors * Real<T>::width;
  const T *query = w.query + p.lane * w.call->D + lane;
  const char *key = w.key_row(w.first + j);
  T s = 0;
  for (int64_t d = 0; d < w.call->D; ++d)
    s = fma1(query[d * W], read_element<T>(w.call->key.dtype, key + d * w.call->key.stride[2]), s);
  return s;
}

#if QKV_PAIRS

// What a row of bfloat16 holds besides plain numbers.
struct Odd {
  bool endless, tiny;  // NaN or infinity; a subnormal number
};
QKV_INLINE Odd odd_pairs(const char *row, int64_t count) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80), rest = _mm512_set1_epi16(0x007f);
  __mmask32 endless = 0, tiny = 0;
  for (int64_t i = 0; i < count; i += 32) {
    const __mmask32 here = count - i >= 32 ? ~__mmask32(0) : (__mmask32(1) << (count - i)) - 1;
    const __m512i x = _mm512_maskz_loadu_epi16(here, row + 2 * i);
    endless |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
    tiny |= _mm512_testn_epi16_mask(x, exponent) & _mm512_test_epi16_mask(x, rest);
  }
  return {endless != 0, tiny != 0};
}

// Columns of pairs from columns of float32 that are bfloat16 exactly; marks lanes with a subnormal number.
template <class T> QKV_INLINE void pair_columns(const T *columns, int64_t D, int64_t step, T *to, Lane<T> *lane) {
  constexpr int width = Real<T>::width;
  IVec<T> tiny = {};
  const auto look = [&](IVec<T> x) {
    tiny |= ((x & all_int<T>(0x7f800000)) == IVec<T>{}) & ((x & all_int<T>(0x007fffff)) != IVec<T>{});
    return x;
  };
  for (int64_t d = 0; d < D; d += 2) {
    const IVec<T> low = look((IVec<T>)load(columns + d * step)), high = look((IVec<T>)load(columns + (d + 1) * step));
    store(to + d / 2 * step, (Vec<T>)(((low >> 16) & all_int<T>(0xffff)) | (high & all_int<T>(int32_t(0xffff0000)))));
  }
  for (int i = 0; i < width; ++i) lane[i].careful = tiny[i] != 0;
}

// The block's keys as rows of pairs: where the caller has them, or in w.key, where a row with a NaN or an infinity is 0.
template <class T> void ready_pairs(Work<T> &w) {
  const qkv_operand &o = w.call->key;
  const int64_t D = w.call->D, rows = w.end - w.begin, stride = o.stride[1];
  const char *const from = w.key_row(w.first + w.begin);
  const bool there = o.stride[2] == 2;
  bool any = false;
  w.any_careful = false;
  uint16_t *const own = (uint16_t *)w.key + w.begin * D;
  const int64_t ahead = 4096 / (2 * D) + 1;
  for (int64_t r = 0; r < rows; ++r) {
    const char *row = from + r * stride;
    if (!there) {
      for (int64_t d = 0; d < D; ++d) __builtin_memcpy(own + r * D + d, row + d * o.stride[2], 2);
      row = (const char *)(own + r * D);
    } else if (r + ahead < rows) {
      for (int64_t at = 0; at < 2 * D; at += 64) __builtin_prefetch(row + ahead * stride + at);
    }
    const Odd odd = odd_pairs(row, D);
    if (odd.endless) w.bad[w.begin + r] |= 1, any = true;
    w.careful[w.begin + r] = odd.tiny && !odd.endless;
    w.any_careful |= odd.tiny && !odd.endless;
  }
  w.any_bad |= any;
  if (there && !any) {
    w.pair_rows = from - w.begin * stride, w.pair_stride = stride;
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    if (w.bad[w.begin + r] & 1)
      __builtin_memset(own + r * D, 0, 2 * D);
    else if (there)
      __builtin_memcpy(own + r * D, from + r * stride, 2 * D);
  }
  w.pair_rows = (const char *)w.key, w.pair_stride = 2 * D;
}

template <class T, int M, int N>
QKV_INLINE void pair_tile(int64_t depth, const char *key, int64_t stride, const T *query, T *score, int64_t lanes, Vec<T> scale) {
  Tile<T, M, N> tile;
  tile.clear();
  for (int64_t k = 0; k < depth; ++k) {
    Row<T, N> row;
    row.read(query + k * lanes);
    tile.add_pairs(key + 4 * k, stride, row);
  }
  tile.write_scaled(score, lanes, scale);
}

#if QKV_TILES
// M × 16 keys, `stride` bytes apart, with N × 16 columns of pairs: sums as they are, without the scale.
template <int M, int N> QKV_INLINE void tile_scores(int64_t depth, const char *key, int64_t stride, const float *query, float *score) {
  constexpr int64_t W = N * kTileSide, step = 4 * W;
  tile_zero<0>();
  if constexpr (N > 1) tile_zero<1>();
  if constexpr (M > 1) tile_zero<2>();
  if constexpr (M > 1 && N > 1) tile_zero<3>();
  for (int64_t k = 0; k < depth; ++k, key += 64, query += kTileSide * W) {
    tile_load<4>(key, stride);
    tile_load<6>(query, step);
    tile_add<0, 4, 6>();
    if constexpr (N > 1) tile_load<7>(query + kTileSide, step), tile_add<1, 4, 7>();
    if constexpr (M > 1) tile_load<5>(key + kTileSide * stride, stride), tile_add<2, 5, 6>();
    if constexpr (M > 1 && N > 1) tile_add<3, 5, 7>();
  }
  tile_store<0>(score, step);
  if constexpr (N > 1) tile_store<1>(score + kTileSide, step);
  if constexpr (M > 1) tile_store<2>(score + kTileSide * W, step);
  if constexpr (M > 1 && N > 1) tile_store<3>(score + kTileSide * W + kTileSide, step);
}

// The last few keys, `stride` bytes apart, as the first rows of a whole tile that may be read to its end.
QKV_INLINE const char *whole_tile(const Work<float> &w, const char *key, int64_t stride, int64_t keys) {
  const int64_t bytes = 2 * w.call->D;
  for (int64_t r = 0; r < keys; ++r) __builtin_memcpy(w.tile_rows_copy + r * bytes, key + r * stride, bytes);
  __builtin_memset(w.tile_rows_copy + keys * bytes, 0, (kTileSide - keys) * bytes);
  return w.tile_rows_copy;
}

template <int N> void all_tile_scores(Work<float> &w, const Panel &p) {
  constexpr int64_t W = N * kTileSide;
  const int64_t depth = w.call->D / kTileDepth, stride = w.pair_stride;
  const char *key = w.pair_rows + p.begin * stride;
  const float *const query = w.query_pairs + p.lane * (w.call->D / 2);
  float *score = w.score + p.begin * W;
  int64_t keys = p.end - p.begin;
  for (; keys >= 2 * kTileSide; keys -= 2 * kTileSide, key += 2 * kTileSide * stride, score += 2 * kTileSide * W)
    tile_scores<2, N>(depth, key, stride, query, score), w.fetch.lines(2 * kPace);
  if (keys >= kTileSide) {
    tile_scores<1, N>(depth, key, stride, query, score);
    keys -= kTileSide, key += kTileSide * stride, score += kTileSide * W;
  }
  if (keys > 0) tile_scores<1, N>(depth, whole_tile(w, key, stride, keys), 2 * w.call->D, query, score);
  for (int64_t at = p.begin * W; at < p.end * W; at += kTileSide) store(w.score + at, load(w.score + at) * all<float>(w.scale));
}
#endif

// Scaled scores of the panel with the keys that its vectors meet.
template <class T, int N> __attribute__((noinline)) void pair_scores(Work<T> &w, const Panel &p, const Spans<N> &span) {
  constexpr int W = N * Real<T>::width;
  const int64_t depth = w.call->D / 2;
#if QKV_TILES
  if constexpr (sizeof(T) == 4)
    if (w.tile_scores) all_tile_scores<N>(w, p);
#endif
  if (!w.tile_scores) {
    const T *const query = w.query_pairs + p.lane * depth;
    by_spans(span, [&](int64_t from, int64_t to, auto vectors, int v) {
      constexpr int V = decltype(vectors)::count;
      by_rows<kTileRows<V>>(from, to, [&](auto rows, int64_t j) {
        pair_tile<T, decltype(rows)::count, V>(depth, w.pair_rows + j * w.pair_stride, w.pair_stride, query + v * Real<T>::width,
                                               w.score + j * W + v * Real<T>::width, W, all<T>(w.scale));
        w.fetch.lines(kPace / 2);
      });
    });
  }
  if (__builtin_expect(!w.any_careful && !p.careful, 1)) return;
  for (int64_t j = p.begin; j < p.end; ++j)
    for (int i = 0; i < W; ++i)
      if ((w.careful[j] || w.lane[p.lane + i].careful) && !(w.bad[j] & 1)) w.score[j * W + i] = chain_of(w, p, i, j);
}

#else

template <class T> void pair_columns(const T *, int64_t, int64_t, T *, Lane<T> *) {}
template <class T> void ready_pairs(Work<T> &) {}
template <class T, int N> void pair_scores(Work<T> &, const Panel &, const Spans<N> &) {}

#endif

}  // namespace
