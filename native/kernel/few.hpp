// A tile of a few lanes, as in decoding: most lanes of a vector would idle if they were query rows. So lanes are keys for
// the scores (keys are transposed in registers on the way) and columns for the mixture, and keys and values are read
// where the caller has them, once, in any of the narrow types. Every element sees the chain of operations that it
// would see in a panel, so the bits are the same.
//
// Nothing is looked at before it is used. A key with a NaN or an infinity makes the scores of its pairs non-finite, a
// value those of the mixture, whatever the weight; in either case the block is done again by the panel's way, which
// packs, marks and flags. The mixture of a block is therefore added to the state only once it is known to be finite.
#pragma once
#include "few_tiles.hpp"

namespace {

// C (rows of `step_c`) = or += A (rows of step_a) times B (rows of step_b bytes), any number of rows and columns.
template <class T, class Source, bool Pairs, int M, int N = M == 1 ? 8 : M == 2 ? 4 : 2>
QKV_INLINE void strips(int64_t depth, const T *a, int64_t step_a, const char *b, int64_t step_b, int64_t columns, T *c,
                       int64_t step_c, bool onto, Ahead &next) {
  constexpr int64_t lanes = N * Real<T>::width;
  for (; columns >= lanes; columns -= lanes, b += lanes * Source::size, c += lanes)
    product_strip<T, Source, M, N, Pairs>(depth, a, step_a, b, step_b, c, step_c, onto, [&] { fetch_ahead(next, next.pace); });
  if constexpr (N > 1) strips<T, Source, Pairs, M, N / 2>(depth, a, step_a, b, step_b, columns, c, step_c, onto, next);
}

// Lines a step, so that a product of so many rows and columns asks for so many in all.
template <class T> QKV_INLINE int few_pace(int64_t rows, int64_t columns, int64_t lines, int64_t depth) {
  const int64_t strip = (rows == 1 ? 8 : rows == 2 ? 4 : 2) * Real<T>::width;
  const int64_t steps = (rows + 5) / 6 * ((columns + strip - 1) / strip) * depth;
  return int(steps > 0 ? (lines + steps - 1) / steps : 1);
}

template <class T, class Source, bool Pairs = false>
__attribute__((noinline)) void few_product(int64_t rows, int64_t depth, const T *a, int64_t step_a, const char *b,
                                           int64_t step_b, int64_t columns, T *c, int64_t step_c, bool onto, Ahead &next) {
  const auto some = [&](auto m) {
    constexpr int M = decltype(m)::count;
    strips<T, Source, Pairs, M>(depth, a, step_a, b, step_b, columns, c, step_c, onto, next);
    a += M * step_a, c += M * step_c, rows -= M;
  };
  while (rows >= 6) some(Count<6>());
  if (rows >= 4) some(Count<4>());
  if (rows == 3) some(Count<3>());
  if (rows == 2) some(Count<2>());
  if (rows == 1) some(Count<1>());
}

// Columns past the last whole vector, one by one.
template <class T, class Source>
void few_rest(int64_t rows, int64_t depth, const T *a, int64_t step_a, const char *b, int64_t step_b, int64_t from,
              int64_t columns, T *c, int64_t step_c, bool onto) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t e = from; e < columns; ++e) {
      T x = onto ? c[r * step_c + e] : T(0);
      for (int64_t k = 0; k < depth; ++k) x = fma1(a[r * step_a + k], T(Source::read(b + k * step_b + e * Source::size)), x);
      c[r * step_c + e] = x;
    }
}

// The queries of the tile, row by row, filled up with zeros.
template <class T> void few_queries(Work<T> &w) {
  const int64_t depth = w.pairs ? w.call->D / 2 : w.call->D, W = Real<T>::width;
  const T *const query = w.pairs ? w.query_pairs : w.query;
  for (int64_t r = 0; r < w.few; ++r)
    for (int64_t d = 0; d < w.few_depth; ++d) w.few_query[r * w.few_depth + d] = d < depth ? query[d * W + r] : T(0);
}

// Dot products of all rows with the keys [begin, end) of the block. Pairs: keys and queries are words of two bfloat16, and
// the products are scaled here; false if one of the keys has a subnormal number (pairs.hpp).
template <class T, class Source, bool Pairs = false> bool few_scores(Work<T> &w, int64_t begin, int64_t end, Ahead &next) {
  constexpr int width = Real<T>::width, lanes = kFewKeys<T>;
  constexpr int64_t size = Source::size;
  const int64_t D = Pairs ? w.call->D / 2 : w.call->D, stride = w.call->key.stride[1], whole = D / width * width;
  const char *const base = w.key_row(w.first);
  [[maybe_unused]] bool tiny = false;
  alignas(kAlign) T rest[width * width];
  for (int64_t j = begin; j < end; j += lanes) {
    for (int v = 0; v < 4 && j + v * width < end; ++v) {
      const char *row[width];
      T *const to = w.few_key + v * width;
      for (int i = 0; i < width; ++i) row[i] = base + least(j + v * width + i, end - 1) * stride;
#if QKV_PAIRS
      if constexpr (Pairs)
        for (int i = 0; i < width; ++i) tiny |= odd_pairs(row[i], 2 * D).tiny;
#endif
      for (int64_t d = 0; d < whole; d += width) {
        fetch_ahead(next, size);
        transpose<T, Source>(row, d * size, to + d * lanes, lanes);
      }
      if (whole < D) {
        const char *line[width];
        for (int i = 0; i < width; ++i) {
          line[i] = (const char *)(rest + i * width);
          for (int64_t d = 0; d < width; ++d)
            rest[i * width + d] = whole + d < D ? T(Source::read(row[i] + (whole + d) * size)) : T(0);
        }
        transpose<T, Plain<T>>(line, 0, to + whole * lanes, lanes);
      }
    }
    const int64_t keys = (least(end - j, lanes) + width - 1) / width * width;
    next.pace = few_pace<T>(w.few, keys, D * size * keys / 64 * 3 / 4, w.few_depth);
    few_product<T, Plain<T>, Pairs>(w.few, w.few_depth, w.few_query, w.few_depth, (const char *)w.few_key, lanes * sizeof(T),
                                    keys, w.few_score + j, w.few_step, false, next);
    for (int64_t r = 0; Pairs && r < w.few; ++r)
      for (T *s = w.few_score + r * w.few_step + j, *const stop = s + keys; s < stop; s += width) store(s, load(s) * all<T>(w.scale));
  }
  return !tiny;
}

// The block's weights times its values, into few_next.
template <class T, class Source> void few_mix(Work<T> &w, int64_t begin, int64_t end, Ahead &next) {
  constexpr int width = Real<T>::width;
  constexpr int64_t together = 16;
  const int64_t E = w.call->E, stride = w.call->value.stride[1], whole = E / width * width;
  const char *const base = w.value_row(w.first);
  for (int64_t j = begin; j < end; j += together) {
    const int64_t keys = least(together, end - j);
    const char *const value = base + j * stride;
    const T *const weight = w.few_score + j;
    next.pace = few_pace<T>(w.few, whole, E * Source::size * keys / 64, keys);
    few_product<T, Source>(w.few, keys, weight, w.few_step, value, stride, whole, w.few_next, E, j > begin, next);
    if (whole < E) few_rest<T, Source>(w.few, keys, weight, w.few_step, value, stride, whole, E, w.few_next, E, j > begin);
  }
}

// Scores of row r outside [from, to) become x.
template <class T>
QKV_INLINE void few_outside(Work<T> &w, int64_t r, int64_t low, int64_t high, int64_t from, int64_t to, T x) {
  T *const score = w.few_score + r * w.few_step;
  for (int64_t j = low; j < from; ++j) score[j] = x;
  for (int64_t j = to; j < high; ++j) score[j] = x;
}

template <class T> bool few_odd(const Work<T> &w, int64_t r, int64_t low, int64_t high) {
  Vec<T> odd = {};
  for (int64_t j = low; j < high; j += Real<T>::width) odd = fma(load(w.few_score + r * w.few_step + j), Vec<T>{}, odd);
  return any<T>(odd != odd);
}

// Softcap, ALiBi and bias of row r.
template <class T> void few_adjust(Work<T> &w, int64_t r, int64_t low, int64_t high) {
  constexpr int width = Real<T>::width;
  const qkv_call *call = w.call;
  T *const score = w.few_score + r * w.few_step;
  const Lane<T> &lane = w.lane[r];
  if (call->softcap > 0)
    for (int64_t j = low; j < high; j += width) store(score + j, soften<T>(load(score + j), all<T>(w.softcap)));
  if (call->slopes) {
    const int64_t exact = sizeof(T) == 8 ? int64_t(1) << 50 : int64_t(1) << 22, start = lane.position - w.first;
    if (w.count < exact && start < exact && start > -exact) {
      Vec<T> count;
      for (int i = 0; i < width; ++i) count[i] = T(i);
      for (int64_t j = low; j < high; j += width)
        store(score + j, fma(all<T>(lane.slope), magnitude<T>(all<T>(T(start - j)) - count), load(score + j)));
    } else {
      for (int64_t j = low; j < high; ++j)
        score[j] = fma1(lane.slope, T(start < j ? j - start : start - j), score[j]);
    }
  }
  if (call->bias.base)
    for (int64_t j = w.panel[0].begin; j < w.panel[0].end; ++j) score[j] = score[j] + w.bias[j * width + r];
}

// Scores of row r, in place, become weights; `base` is the maximum. Answers their sum, in the panel's four strands.
template <class T> QKV_INLINE T few_weigh(T *score, int64_t low, int64_t high, T base) {
  constexpr int width = Real<T>::width;
  typedef T Four __attribute__((vector_size(4 * sizeof(T))));
  for (int64_t j = low; j < high; j += width) store(score + j, exponential<T>(load(score + j) - all<T>(base)));
  Four strand = {};
  for (int64_t j = low / 4 * 4; j < high; j += 4) {
    Four weight;
    __builtin_memcpy(&weight, score + j, sizeof weight);
    strand = strand + weight;
  }
  return (strand[0] + strand[1]) + (strand[2] + strand[3]);
}

// The block at hand; false if it has to be done the panel's way, and then the state has not changed.
template <class T> bool visit_few(Work<T> &w) {
  constexpr int width = Real<T>::width;
  const qkv_call *call = w.call;
  const Panel &p = w.panel[0];
  // Whole vectors of keys and whole fours of the strands around [p.begin, p.end).
  const int64_t wide = width > 4 ? width : 4, low = p.begin / wide * wide, high = (p.end + wide - 1) / wide * wide;
  bool dense = call->allow.base || call->bias.base;
  for (int64_t r = 0; r < w.few; ++r) {
    const int32_t row = w.lane[r].row;
    dense |= call->K > 1 && w.from[row] < w.to[row] && !w.whole[row];
  }
  if (dense) {
    mask_ranges<T, 1>(w, p);
    if (call->allow.base) mask_allow<T, 1>(w, p);
    if (call->bias.base) mask_bias<T, 1>(w, p);
  }
  const int64_t size = element_size(call->key.dtype), block = call->block;
  Ahead next = {w.key_row(w.first + p.begin) + block * call->key.stride[1], 0, call->D * size, call->key.stride[1], block,
                w.value_row(w.first + p.begin) + block * call->value.stride[1], call->E * size, call->value.stride[1], block, 1};
  if (QKV_TILES && w.tile_scores) {
    if (!few_tile_scores(w, p.begin, p.end, next)) return false;
  } else if (QKV_PAIRS && w.pairs) {
    if (!few_scores<T, Plain<T>, true>(w, p.begin, p.end, next)) return false;
  } else {
    with_element<T>(call->key.dtype, [&](auto source) { few_scores<T, decltype(source)>(w, p.begin, p.end, next); });
  }

  T max[kFewRows<T>] = {}, sum[kFewRows<T>] = {}, alpha[kFewRows<T>] = {};
  bool some[kFewRows<T>] = {};
  for (int64_t r = 0; r < w.few; ++r) {
    T *const score = w.few_score + r * w.few_step;
    const int32_t row = w.lane[r].row;
    some[r] = w.from[row] < w.to[row];
    const int64_t from = some[r] ? w.from[row] : high, to = some[r] ? w.to[row] : high;
    few_outside(w, r, low, high, from, to, T(0));
    if (few_odd(w, r, low, high)) return false;
    if (call->softcap > 0 || call->slopes || call->bias.base) {
      few_adjust(w, r, low, high);
      if (few_odd(w, r, low, high)) return false;
    }
    few_outside(w, r, low, high, from, to, -Real<T>::infinity);
    if (dense) {
      some[r] = false;
      for (int64_t j = from; j < to; ++j)
        if (w.mask[j * width + r])
          some[r] = true;
        else
          score[j] = -Real<T>::infinity;
    }
    Vec<T> top = all<T>(-Real<T>::infinity);
    for (int64_t j = low; j < high; j += width) top = larger<T>(load(score + j), top);
    const T before = w.max[r];
    max[r] = before;
    for (int i = 0; i < width; ++i) max[r] = top[i] > max[r] ? top[i] : max[r];
    const T base = max[r] == -Real<T>::infinity ? T(0) : max[r];
    alpha[r] = exponential1<T>(before - base);
    sum[r] = fma1(w.sum[r], alpha[r], few_weigh(score, low, high, base));
  }

  if (QKV_TILES && w.tile_mixture) {
    if (!few_tile_mix(w, p.begin, p.end, low, high, next)) return false;
  } else {
    with_element<T>(call->value.dtype, [&](auto source) { few_mix<T, decltype(source)>(w, p.begin, p.end, next); });
  }
  T odd = 0;
  for (int64_t r = 0; r < w.few; ++r) {
    const T *const mix = w.few_state + r * call->E;
    T *const fresh = w.few_next + r * call->E;
    for (int64_t e = 0; e < call->E; ++e) fresh[e] = fma1(mix[e], alpha[r], fresh[e]);
    for (int64_t e = 0; e < call->E; ++e) odd += fresh[e] * 0;
  }
  if (odd != 0) return false;
  for (int64_t r = 0; r < w.few; ++r) {
    w.max[r] = max[r], w.sum[r] = sum[r];
    if (some[r]) w.lane[r].flag |= QKV_ALLOWED;
  }
  T *const fresh = w.few_next;
  w.few_next = w.few_state, w.few_state = fresh;
  return true;
}

// The mixture between its place here, row by row, and the panel's, column by column.
template <class T> void few_to_panel(Work<T> &w) {
  for (int64_t r = 0; r < w.few; ++r)
    for (int64_t e = 0; e < w.call->E; ++e) w.mix[e * Real<T>::width + r] = w.few_state[r * w.call->E + e];
}
template <class T> void few_from_panel(Work<T> &w) {
  for (int64_t r = 0; r < w.few; ++r)
    for (int64_t e = 0; e < w.call->E; ++e) w.few_state[r * w.call->E + e] = w.mix[e * Real<T>::width + r];
}

}  // namespace
